// A constraint that begins after the reasoning. The rules are those of pocketllm.structured.AfterText, which is the
// reference; a test compares the two, mask for mask.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "structured/matcher.h"

namespace pocket {

// What a vocabulary has to do with a tag. Immutable; any thread.
class TagTokens : public std::enable_shared_from_this<TagTokens> {
 public:
  // `tokens`: the bytes of each. `tag` is not empty.
  TagTokens(std::vector<std::string> tokens, std::string tag);

  const std::string& tag() const noexcept { return tag_; }
  const std::string& piece(std::int32_t token) const { return tokens_[static_cast<std::size_t>(token)]; }
  std::int64_t vocab_size() const noexcept { return static_cast<std::int64_t>(tokens_.size()); }
  // Tokens of white space, ascending.
  const std::vector<std::int32_t>& blank() const noexcept { return blank_; }
  // Where the first `num_written` bytes of the tag were written: the tokens that complete it and hold more than white
  // space after it, ascending.
  const std::vector<std::int32_t>& past(std::size_t num_written) const { return past_[num_written]; }

 private:
  bool goes_past(const std::string& text) const;

  std::vector<std::string> tokens_;
  std::string tag_;
  std::vector<std::int32_t> blank_;
  std::vector<std::vector<std::int32_t>> past_;
};

// How the reasoning begins.
struct Opening {
  bool is_begun = true;     // the prompt has begun it; otherwise the completion may begin it or leave it out
  std::int32_t token = -1;  // what begins it; negative: this vocabulary has no such token, so it is left out
};

// Lets everything but stop ids pass until the tag, then follows `matcher`.
class AfterTextMatcher : public Matcher {
 public:
  AfterTextMatcher(std::unique_ptr<Matcher> matcher, std::shared_ptr<const TagTokens> tokens, Opening opening,
                   std::vector<std::int32_t> stop_ids);

  bool fill_mask(std::uint32_t* words, std::int64_t num_words) override;
  bool accept(std::int32_t token) override;
  bool rollback(std::int64_t num_tokens) override;
  bool is_done() override { return !num_written_ && matcher_->is_done(); }

 private:
  struct Moment {
    std::optional<std::size_t> num_written;
    bool may_open = false;
    int num_padding = 0;
    bool consumed = false;  // the inner matcher took the token
  };

  void read(const std::string& piece);

  std::unique_ptr<Matcher> matcher_;
  std::shared_ptr<const TagTokens> tokens_;
  std::int32_t opening_token_;
  std::vector<std::int32_t> stop_ids_;
  // Before the tag, how much of it was just written; empty once the matcher follows.
  std::optional<std::size_t> num_written_;
  bool may_open_;
  int num_padding_ = 0;  // tokens of white space that may still come before the answer
  std::vector<Moment> history_;
};

}  // namespace pocket
