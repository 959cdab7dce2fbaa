// Constraints as the grammar library compiles them. Python objects and matchers share these classes by a count of their
// own: the engine's thread, which has no interpreter's lock, may be the last to let go of one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "structured/grammar_library.h"

namespace pocket {

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

}  // namespace pocket
