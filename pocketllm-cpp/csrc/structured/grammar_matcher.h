// A grammar followed without the interpreter's lock. The rules are those of pocketllm.structured.Matcher, which is the
// reference; a test compares the two, mask for mask.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "structured/grammar.h"
#include "structured/matcher.h"

namespace pocket {

// Follows one sequence under one grammar. One thread at a time.
class GrammarMatcher : public Matcher {
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
