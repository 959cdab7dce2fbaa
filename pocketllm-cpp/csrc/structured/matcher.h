// What runs beside the sampler of one sequence and says which tokens may come next.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "structured/matcher_functions.h"

namespace pocket {

// One thread at a time. Where a function returns false, error() says why.
class Matcher {
 public:
  virtual ~Matcher() = default;

  // Bit i of word w: token 32 w + i may come next. Writes all of `num_words` words.
  virtual bool fill_mask(std::uint32_t* words, std::int64_t num_words) = 0;
  // False: the token is not allowed, and the matcher is where it was.
  virtual bool accept(std::int32_t token) = 0;
  // Takes back the last `num_tokens` accepted tokens. False: there are fewer, or the grammar library cannot.
  virtual bool rollback(std::int64_t num_tokens) = 0;
  // Nothing may follow but a stop id.
  virtual bool is_done() = 0;

  // Valid until the next call.
  const char* error() const noexcept { return error_.c_str(); }

 protected:
  void refuse(std::int32_t token) {
    error_ = "The constraint does not allow token " + std::to_string(token) + " here.";
  }

  std::string error_;
};

// A token outside the mask is left out.
inline void set_bit(std::uint32_t* words, std::int64_t num_words, std::int32_t token, bool allowed) noexcept {
  if (token < 0 || token >= num_words * 32) return;
  const std::uint32_t bit = 1u << (token % 32);
  if (allowed) {
    words[token / 32] |= bit;
  } else {
    words[token / 32] &= ~bit;
  }
}

// Hands a matcher over to the engine, which releases it.
MatcherPointers as_pointers(std::unique_ptr<Matcher> matcher);

}  // namespace pocket
