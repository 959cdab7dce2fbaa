#include "engine/step_runner.h"

#include <algorithm>
#include <iterator>

namespace pocket {
namespace {

// Position p of the prompt is predicted by row p - 1; the last row of the prompt predicts the answer.
std::int64_t num_prompt_targets(const PlannedRows& rows) noexcept {
  const std::int64_t end = std::min(rows.start + rows.length, rows.sequence->num_prompt_tokens - 1);
  return std::max<std::int64_t>(0, end - rows.start);
}

}  // namespace

std::span<const SampleRow> StepRunner::execute(const StepPlan& plan) {
  tokens_.clear();
  sequences_.clear();
  logit_rows_.clear();
  sampled_.clear();
  bool has_prompt_logprobs = false;
  for (const PlannedRows& rows : plan.rows) {
    Sequence& sequence = *rows.sequence;
    const auto first = static_cast<std::int32_t>(tokens_.size());
    const auto* begin = sequence.tokens.data() + rows.start;
    tokens_.insert(tokens_.end(), begin, begin + rows.length);
    sequences_.push_back(
        {first, static_cast<std::int32_t>(rows.length), rows.start, sequence.blocks, sequence.slot, rows.chunked});
    const auto last = static_cast<std::int32_t>(tokens_.size()) - 1;
    if (rows.chunked && sequence.wants_prompt_logprobs()) {
      has_prompt_logprobs = true;
      const auto num_wanted = static_cast<std::int32_t>(num_prompt_targets(rows));
      for (std::int32_t row = first; row < first + num_wanted; ++row) logit_rows_.push_back(row);
    }
    if (rows.completes()) {
      sampled_.push_back({&sequence, std::ssize(logit_rows_)});
      logit_rows_.push_back(last);  // never among the wanted: it predicts the answer
    }
  }
  const auto vocab = static_cast<std::size_t>(runtime_.model().shape().vocab_size);
  Context& context = runtime_.context();
  float* logits = logits_.reserve<float>(context.device, logit_rows_.size() * vocab);
  Caches caches = runtime_.caches();
  runtime_.model().forward(context, {tokens_, sequences_, logit_rows_}, caches, logits);
  if (has_prompt_logprobs) add_prompt_logprobs(plan);
  return sampled_;
}

void StepRunner::add_prompt_logprobs(const StepPlan& plan) {
  std::int64_t logit_row = 0;
  for (const PlannedRows& rows : plan.rows) {
    Sequence& sequence = *rows.sequence;
    if (rows.chunked && sequence.wants_prompt_logprobs()) {
      logprob_rows_.clear();
      const std::int64_t num_rows = num_prompt_targets(rows);
      for (std::int64_t row = 0; row < num_rows; ++row) {
        const std::int64_t position = rows.start + row + 1;
        logprob_rows_.push_back({{logit_row++, sequence.tokens[static_cast<std::size_t>(position)],
                                  sequence.group->sampling.num_top_logprobs},
                                 static_cast<std::int32_t>(position)});
      }
      append_logprobs(runtime_.context(), logits(), logprob_rows_, sequence.prompt_logprobs);
    }
    if (rows.completes()) ++logit_row;
  }
}

}  // namespace pocket
