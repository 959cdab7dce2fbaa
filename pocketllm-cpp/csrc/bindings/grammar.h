// Grammars followed without the interpreter's lock. The rules are those of pocketllm.structured.Matcher, which is the
// reference; a test compares the two, mask for mask.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bindings/constraint_matcher.h"
#include "bindings/grammar_library.h"

namespace pocket {

// What the engine's thread lets go of must need no interpreter: owners in Python share these by their own count.

// A vocabulary as the grammar library indexes it. Immutable; any thread.
class GrammarVocabulary : public std::enable_shared_from_this<GrammarVocabulary> {
 public:
  // `tokens`: the bytes of each; a leading 0xFF marks control tokens. `end_token`: what the library takes for the end.
  // Throws Error(kConfiguration) when the library refuses them.
  GrammarVocabulary(const GrammarLibrary& library, const std::vector<std::string>& tokens, std::int32_t end_token);

  const GrammarLibrary& library() const noexcept { return library_; }
  const LlgTokenizer* tokenizer() const noexcept { return tokenizer_.get(); }
  std::int64_t size() const noexcept { return size_; }
  std::int64_t num_words() const noexcept { return (size_ + 31) / 32; }
  std::int32_t end_token() const noexcept { return end_token_; }

 private:
  GrammarLibrary library_;
  std::int64_t size_;
  std::int32_t end_token_;
  std::unique_ptr<LlgTokenizer, std::function<void(LlgTokenizer*)>> tokenizer_;
};

using LibraryMatcher = std::unique_ptr<LlgMatcher, void (*)(LlgMatcher*)>;

// One compiled grammar. Any thread.
class Grammar : public std::enable_shared_from_this<Grammar> {
 public:
  // `text`: in the library's own format. Throws Error(kConfiguration) when the library refuses it.
  Grammar(std::shared_ptr<const GrammarVocabulary> vocabulary, std::string text, const LlgParserLimits& limits);

  const GrammarVocabulary& vocabulary() const noexcept { return *vocabulary_; }
  // At the start of the text, with a lexer of its own.
  LibraryMatcher start() const;

 private:
  LibraryMatcher compile() const;

  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::string text_;
  LlgParserLimits limits_;
  mutable std::mutex mutex_;  // the library does not say that a matcher may be cloned by two threads
  LibraryMatcher template_;
};

// Follows one sequence under one grammar; see Matcher in pocketllm/structured/matcher.py. One thread at a time.
class GrammarMatcher : public ConstraintMatcher {
 public:
  GrammarMatcher(std::shared_ptr<const Grammar> grammar, std::vector<std::int32_t> stop_ids);

  // A mask that allows nothing is an error, unless the text is complete and no stop id exists.
  bool fill_mask(std::uint32_t* words, std::int64_t num_words) override;
  bool accept(std::int32_t token) override;
  bool rollback(std::int64_t num_tokens) override;
  bool is_done() override;

 private:
  // The text so far satisfies the constraint.
  bool allows_end();
  bool compute(std::uint32_t* words);
  void start_again();
  bool consume(std::int32_t token);
  bool is_stop_id(std::int32_t token) const noexcept;
  bool is_stuck() { return library().is_stopped(matcher_.get()) && !library().is_error(matcher_.get()); }
  const GrammarLibrary& library() const noexcept { return grammar_->vocabulary().library(); }

  std::shared_ptr<const Grammar> grammar_;
  std::vector<std::int32_t> stop_ids_;
  LibraryMatcher matcher_;
  std::vector<std::uint32_t> tokens_;  // what the library consumed: the accepted ones but the stop id
  std::vector<std::uint32_t> row_;
  bool stopped_ = false;
};

}  // namespace pocket
