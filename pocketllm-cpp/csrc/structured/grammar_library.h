// The grammar library's C interface, by address: core has loaded the library, and says where its functions are. Only what
// is used here, laid out as in the library's own header (llguidance 1.9).
#pragma once

#include <cstddef>
#include <cstdint>

namespace pocket {

struct LlgTokenizer;
struct LlgMatcher;

struct LlgTokenizerInitV2 {
  std::size_t struct_size = sizeof(LlgTokenizerInitV2);
  std::uint32_t vocab_size = 0;
  std::uint32_t eos_token = 0;
  const std::uint32_t* token_lengths = nullptr;
  const std::uint8_t* token_bytes = nullptr;
  const char* tokenizer_json = nullptr;
  bool tokenize_assumes_string = false;
  void* tokenize_function = nullptr;
  bool use_approximate_greedy_tokenize = false;
  const void* tokenize_user_data = nullptr;
  const char* const* slices = nullptr;
  const std::uint32_t* extra_eos_tokens = nullptr;
  std::uint32_t num_extra_eos_tokens = 0;
};

struct LlgParserLimits {
  std::size_t max_items_in_row = 0;
  std::uint64_t initial_lexer_fuel = 0;
  std::uint64_t step_lexer_fuel = 0;
  std::size_t step_max_items = 0;
  std::size_t max_lexer_states = 0;
  std::size_t max_grammar_size = 0;
  bool precompute_large_lexemes = true;
  bool verbose_errors = false;
};

struct LlgConstraintInit {
  const LlgTokenizer* tokenizer = nullptr;
  std::uint32_t log_buffer_level = 0;
  std::uint32_t log_stderr_level = 0;
  bool ff_tokens_ok = false;
  bool backtrack_ok = false;
  LlgParserLimits limits;
  // The structure has no size field, so a later release may write past what is known here.
  std::uint8_t reserved[256] = {};
};

struct GrammarLibrary {
  LlgTokenizer* (*new_tokenizer)(const LlgTokenizerInitV2* init, char* error, std::size_t error_size) = nullptr;
  void (*free_tokenizer)(LlgTokenizer* tokenizer) = nullptr;
  void (*set_defaults)(LlgConstraintInit* init, const LlgTokenizer* tokenizer) = nullptr;
  LlgMatcher* (*new_matcher)(const LlgConstraintInit* init, const char* kind, const char* text) = nullptr;
  LlgMatcher* (*clone_matcher)(const LlgMatcher* matcher) = nullptr;
  void (*free_matcher)(LlgMatcher* matcher) = nullptr;
  std::int32_t (*compute_mask_into)(LlgMatcher* matcher, std::uint32_t* words, std::size_t num_bytes) = nullptr;
  std::int32_t (*validate_tokens)(LlgMatcher* matcher, const std::uint32_t* tokens, std::size_t num_tokens) = nullptr;
  std::int32_t (*consume_tokens)(LlgMatcher* matcher, const std::uint32_t* tokens, std::size_t num_tokens) = nullptr;
  std::int32_t (*rollback)(LlgMatcher* matcher, std::size_t num_tokens) = nullptr;
  bool (*is_accepting)(LlgMatcher* matcher) = nullptr;
  bool (*is_stopped)(const LlgMatcher* matcher) = nullptr;
  bool (*is_error)(LlgMatcher* matcher) = nullptr;
  const char* (*get_error)(LlgMatcher* matcher) = nullptr;
};

}  // namespace pocket
