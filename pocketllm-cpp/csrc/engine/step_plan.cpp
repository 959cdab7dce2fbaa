#include "engine/step_plan.h"

#include <algorithm>

namespace pocket {
namespace {

// Position p of a prompt is predicted by row p - 1; the last row of the prompt predicts the answer.
std::int32_t add_targets(const PlannedRows& rows, std::vector<std::int32_t>& targets) {
  const Sequence& sequence = *rows.sequence;
  if (!rows.chunked || !sequence.wants_prompt_logprobs()) return 0;
  const std::int64_t end = std::min(rows.start + rows.length, sequence.num_prompt_tokens - 1);
  const std::int64_t num_targets = std::max<std::int64_t>(0, end - rows.start);
  const auto* first = sequence.tokens.data() + rows.start + 1;
  targets.insert(targets.end(), first, first + num_targets);
  return static_cast<std::int32_t>(num_targets);
}

}  // namespace

std::int64_t PlannedRows::num_prompt_tokens() const noexcept {
  return std::max<std::int64_t>(0, std::min(start + length, sequence->num_prompt_tokens) - start);
}

void make_step(const StepPlan& plan, StepInput& step) {
  step.spans.clear();
  step.tokens.clear();
  step.blocks.clear();
  step.targets.clear();
  step.block_copies.assign(plan.block_copies.begin(), plan.block_copies.end());
  step.state_moves.assign(plan.state_moves.begin(), plan.state_moves.end());
  for (const PlannedRows& rows : plan.rows) {
    const Sequence& sequence = *rows.sequence;
    StepSpan span;
    span.start = rows.start;
    span.num_rows = static_cast<std::int32_t>(rows.length);
    span.num_blocks = static_cast<std::int32_t>(sequence.blocks.size());
    span.num_draft = rows.num_draft;
    span.num_logits = rows.completes() ? 1 + rows.num_draft : 0;
    span.num_targets = add_targets(rows, step.targets);
    span.num_top = sequence.group->sampling.num_top_logprobs;
    span.slot = sequence.slot;
    span.chunked = rows.chunked;
    const auto* first = sequence.tokens.data() + rows.start;
    step.tokens.insert(step.tokens.end(), first, first + rows.length - rows.num_draft);
    step.tokens.insert(step.tokens.end(), sequence.draft.begin(), sequence.draft.begin() + rows.num_draft);
    step.blocks.insert(step.blocks.end(), sequence.blocks.begin(), sequence.blocks.end());
    step.spans.push_back(span);
  }
}

}  // namespace pocket
