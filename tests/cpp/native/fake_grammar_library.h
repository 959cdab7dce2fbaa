// A grammar library whose grammars are lists of texts, "red|green|greenish". It keeps the real one's contract: errors
// stay, a matcher stops where nothing can follow, and max_lexer_states counts what one matcher may do before it fails.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "structured/grammar.h"

namespace pocket {

// Complete here alone: the product holds these as opaque pointers.
struct LlgTokenizer {
  std::vector<std::string> tokens;
  std::uint32_t end_token = 0;
};

struct LlgMatcher {
  const LlgTokenizer* tokenizer = nullptr;
  std::vector<std::string> texts;
  std::size_t max_states = 0;
  std::size_t num_states = 0;
  std::vector<std::uint32_t> consumed;
  std::string error;
};

}  // namespace pocket

namespace fake_grammar {

inline std::atomic<int> num_tokenizers{0};
inline std::atomic<int> num_matchers{0};
// What rollback() does while this is set; the real library refuses in some states of its own.
inline std::atomic<bool> refuses_rollback{false};

inline std::string written(const pocket::LlgMatcher& matcher) {
  std::string text;
  for (const std::uint32_t token : matcher.consumed) text += matcher.tokenizer->tokens[token];
  return text;
}

inline bool is_accepting(const pocket::LlgMatcher& matcher) {
  return std::find(matcher.texts.begin(), matcher.texts.end(), written(matcher)) != matcher.texts.end();
}

inline bool can_follow(const pocket::LlgMatcher& matcher, const std::string& piece) {
  const std::string text = written(matcher) + piece;
  return !piece.empty() && std::any_of(matcher.texts.begin(), matcher.texts.end(),
                                       [&](const std::string& whole) { return whole.starts_with(text); });
}

inline bool can_grow(const pocket::LlgMatcher& matcher) {
  const std::string text = written(matcher);
  return std::any_of(matcher.texts.begin(), matcher.texts.end(), [&](const std::string& whole) {
    return whole.size() > text.size() && whole.starts_with(text);
  });
}

// A mask looks at more of the lexer than one token does.
constexpr std::size_t kStatesOfToken = 1;
constexpr std::size_t kStatesOfMask = 4;

inline bool use(pocket::LlgMatcher& matcher, std::size_t num_states) {
  if (!matcher.error.empty()) return false;
  matcher.num_states += num_states;
  if (matcher.num_states > matcher.max_states) matcher.error = "too many lexer states";
  return matcher.error.empty();
}

inline bool allows(const pocket::LlgMatcher& matcher, std::uint32_t token) {
  if (token == matcher.tokenizer->end_token) return is_accepting(matcher);
  return token < matcher.tokenizer->tokens.size() && can_follow(matcher, matcher.tokenizer->tokens[token]);
}

inline pocket::LlgTokenizer* new_tokenizer(const pocket::LlgTokenizerInitV2* init, char* error, std::size_t size) {
  if (init->vocab_size == 0) {
    std::snprintf(error, size, "no tokens");
    return nullptr;
  }
  auto made = std::make_unique<pocket::LlgTokenizer>();
  const auto* bytes = reinterpret_cast<const char*>(init->token_bytes);
  for (std::uint32_t token = 0; token < init->vocab_size; ++token) {
    made->tokens.emplace_back(bytes, init->token_lengths[token]);
    bytes += init->token_lengths[token];
  }
  made->end_token = init->eos_token;
  ++num_tokenizers;
  return made.release();
}

inline void free_tokenizer(pocket::LlgTokenizer* tokenizer) {
  --num_tokenizers;
  const std::unique_ptr<pocket::LlgTokenizer> owned(tokenizer);
}

inline void set_defaults(pocket::LlgConstraintInit* init, const pocket::LlgTokenizer* tokenizer) {
  *init = {};
  init->tokenizer = tokenizer;
}

inline pocket::LlgMatcher* new_matcher(const pocket::LlgConstraintInit* init, const char*, const char* text) {
  auto made = std::make_unique<pocket::LlgMatcher>();
  made->tokenizer = init->tokenizer;
  made->max_states = init->limits.max_lexer_states;
  std::string rest = text;
  for (std::size_t bar = rest.find('|'); bar != std::string::npos; bar = rest.find('|')) {
    made->texts.push_back(rest.substr(0, bar));
    rest.erase(0, bar + 1);
  }
  made->texts.push_back(rest);
  if (rest.empty()) made->error = "an empty text";
  ++num_matchers;
  return made.release();
}

inline pocket::LlgMatcher* clone_matcher(const pocket::LlgMatcher* matcher) {
  ++num_matchers;
  return std::make_unique<pocket::LlgMatcher>(*matcher).release();
}

inline void free_matcher(pocket::LlgMatcher* matcher) {
  --num_matchers;
  const std::unique_ptr<pocket::LlgMatcher> owned(matcher);
}

inline std::int32_t compute_mask_into(pocket::LlgMatcher* matcher, std::uint32_t* words, std::size_t num_bytes) {
  // In an error the library writes what it likes.
  std::fill_n(words, num_bytes / sizeof(std::uint32_t), 0xDEADBEEFu);
  if (!use(*matcher, kStatesOfMask)) return -1;
  std::fill_n(words, num_bytes / sizeof(std::uint32_t), 0u);
  for (std::uint32_t token = 0; token < matcher->tokenizer->tokens.size(); ++token) {
    if (allows(*matcher, token)) words[token / 32] |= 1u << (token % 32);
  }
  return 0;
}

inline std::int32_t validate_tokens(pocket::LlgMatcher* matcher, const std::uint32_t* tokens, std::size_t num_tokens) {
  if (!use(*matcher, kStatesOfToken)) return -1;
  return num_tokens == 1 && allows(*matcher, *tokens) ? 1 : 0;
}

inline std::int32_t consume_tokens(pocket::LlgMatcher* matcher, const std::uint32_t* tokens, std::size_t num_tokens) {
  for (std::size_t index = 0; index < num_tokens; ++index) {
    if (!use(*matcher, kStatesOfToken)) return -1;
    if (!allows(*matcher, tokens[index])) {
      matcher->error = "a token that does not fit";
      return -1;
    }
    matcher->consumed.push_back(tokens[index]);
  }
  return 0;
}

inline std::int32_t rollback(pocket::LlgMatcher* matcher, std::size_t num_tokens) {
  if (refuses_rollback || num_tokens > matcher->consumed.size()) {
    matcher->error = "no such state";
    return -1;
  }
  matcher->consumed.resize(matcher->consumed.size() - num_tokens);
  return 0;
}

inline pocket::GrammarLibrary library() {
  pocket::GrammarLibrary functions;
  functions.new_tokenizer = new_tokenizer;
  functions.free_tokenizer = free_tokenizer;
  functions.set_defaults = set_defaults;
  functions.new_matcher = new_matcher;
  functions.clone_matcher = clone_matcher;
  functions.free_matcher = free_matcher;
  functions.compute_mask_into = compute_mask_into;
  functions.validate_tokens = validate_tokens;
  functions.consume_tokens = consume_tokens;
  functions.rollback = rollback;
  functions.is_accepting = [](pocket::LlgMatcher* matcher) { return is_accepting(*matcher); };
  functions.is_stopped = [](const pocket::LlgMatcher* matcher) { return !matcher->error.empty() || !can_grow(*matcher); };
  functions.is_error = [](pocket::LlgMatcher* matcher) { return !matcher->error.empty(); };
  functions.get_error = [](pocket::LlgMatcher* matcher) { return matcher->error.c_str(); };
  return functions;
}

constexpr std::size_t kNoLimit = std::size_t{1} << 40;

inline std::shared_ptr<pocket::Grammar> compile(const std::vector<std::string>& tokens, std::int32_t end_token,
                                                const std::string& text, std::size_t max_states = kNoLimit) {
  pocket::LlgParserLimits limits;
  limits.max_lexer_states = max_states;
  auto vocabulary = std::make_shared<pocket::GrammarVocabulary>(library(), tokens, end_token);
  return std::make_shared<pocket::Grammar>(std::move(vocabulary), text, limits);
}

}  // namespace fake_grammar
