// Ownership of a structured-output matcher.
#pragma once

#include <string>
#include <utility>

#include "structured/matcher_functions.h"

namespace pocket {

// Releases the matcher exactly once. Empty when the sequence has no constraint.
class OwnedMatcher {
 public:
  OwnedMatcher() = default;
  explicit OwnedMatcher(const MatcherPointers& matcher) noexcept : matcher_(matcher) {}
  OwnedMatcher(OwnedMatcher&& other) noexcept : matcher_(std::exchange(other.matcher_, {})) {}
  OwnedMatcher& operator=(OwnedMatcher&& other) noexcept {
    std::swap(matcher_, other.matcher_);
    return *this;
  }
  ~OwnedMatcher() {
    if (matcher_.functions != nullptr) matcher_.functions->release(matcher_.object);
  }

  explicit operator bool() const noexcept { return matcher_.functions != nullptr; }

  bool is_done() const { return matcher_.functions->is_done(matcher_.object) == 1; }
  bool fill_mask(std::uint32_t* words, std::int64_t num_words) const {
    return matcher_.functions->fill_mask(matcher_.object, words, num_words) == 0;
  }
  bool accept(std::int32_t token) const { return matcher_.functions->accept(matcher_.object, token) == 0; }
  // Why the last call failed; empty when the matcher does not say.
  std::string error() const {
    const char* text = matcher_.functions->error == nullptr ? nullptr : matcher_.functions->error(matcher_.object);
    return text == nullptr ? std::string{} : std::string{text};
  }

 private:
  MatcherPointers matcher_;
};

}  // namespace pocket
