#include "structured/grammar.h"

#include <utility>

#include "core/error.h"

namespace pocket {

GrammarVocabulary::GrammarVocabulary(const GrammarLibrary& library, const std::vector<std::string>& tokens,
                                     std::int32_t end_token)
    : library_(library), size_(static_cast<std::int64_t>(tokens.size())), end_token_(end_token) {
  std::vector<std::uint32_t> lengths;
  std::string bytes;
  for (const std::string& token : tokens) {
    lengths.push_back(static_cast<std::uint32_t>(token.size()));
    bytes += token;
  }
  LlgTokenizerInitV2 init;
  init.vocab_size = static_cast<std::uint32_t>(tokens.size());
  init.eos_token = static_cast<std::uint32_t>(end_token);
  init.token_lengths = lengths.data();
  init.token_bytes = reinterpret_cast<const std::uint8_t*>(bytes.data());
  // Only forced text would be tokenized, and core's grammars force none.
  init.use_approximate_greedy_tokenize = true;
  char error[256] = {};
  tokenizer_ = {library_.new_tokenizer(&init, error, sizeof error), library_.free_tokenizer};
  if (tokenizer_ == nullptr) {
    throw Error(ErrorKind::kConfiguration, std::string("The grammar library refuses the vocabulary: ") + error);
  }
}

Grammar::Grammar(std::shared_ptr<const GrammarVocabulary> vocabulary, std::string text, const LlgParserLimits& limits)
    : vocabulary_(std::move(vocabulary)), text_(std::move(text)), limits_(limits), template_(compile()) {
  const GrammarLibrary& library = vocabulary_->library();
  if (library.is_error(template_.get())) {
    throw Error(ErrorKind::kConfiguration,
                std::string("The grammar library refuses the constraint: ") + library.get_error(template_.get()));
  }
}

LibraryMatcher Grammar::compile() const {
  const GrammarLibrary& library = vocabulary_->library();
  LlgConstraintInit init;
  library.set_defaults(&init, vocabulary_->tokenizer());
  init.log_buffer_level = 0;
  init.log_stderr_level = 0;
  init.limits = limits_;
  return {library.new_matcher(&init, "llguidance", text_.c_str()), library.free_matcher};
}

LibraryMatcher Grammar::start() const {
  const std::lock_guard<std::mutex> held(mutex_);
  const GrammarLibrary& library = vocabulary_->library();
  return {library.clone_matcher(template_.get()), library.free_matcher};
}

}  // namespace pocket
