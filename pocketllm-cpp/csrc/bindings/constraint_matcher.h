// What restricts a sequence, and how it is handed to the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/request.h"

namespace pocket {

// One thread at a time. Where a function returns false, error() says why.
class ConstraintMatcher {
 public:
  virtual ~ConstraintMatcher() = default;

  // Bit i of word w: token 32 w + i may come next.
  virtual bool fill_mask(std::uint32_t* words, std::int64_t num_words) = 0;
  // False: the token is not allowed, and the matcher is where it was.
  virtual bool accept(std::int32_t token) = 0;
  virtual bool rollback(std::int64_t num_tokens) = 0;
  // Nothing may follow but a stop id.
  virtual bool is_done() = 0;

  const char* error() const noexcept { return error_.c_str(); }

 protected:
  void refuse(std::int32_t token) {
    error_ = "The constraint does not allow token " + std::to_string(token) + " here.";
  }

  std::string error_;
};

inline void set_bit(std::uint32_t* words, std::int64_t num_words, std::int32_t token, bool allowed) noexcept {
  if (token < 0 || token >= num_words * 32) return;
  const std::uint32_t bit = 1u << (token % 32);
  if (allowed) {
    words[token / 32] |= bit;
  } else {
    words[token / 32] &= ~bit;
  }
}

// Hands a matcher over as the engine takes it: the engine releases it.
Matcher as_functions(std::unique_ptr<ConstraintMatcher> matcher);

}  // namespace pocket
