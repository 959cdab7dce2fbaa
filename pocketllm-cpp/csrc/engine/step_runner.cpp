#include "engine/step_runner.h"

namespace pocket {

StepRunner::StepRunner(Runtime& runtime, std::int64_t vocab_size) : runtime_(runtime), vocab_size_(vocab_size) {
  if (runtime.states() != nullptr) states_.emplace(runtime.context(), *runtime.states(), runtime.num_slots());
}

StepOutput& StepRunner::execute(const StepInput& step) {
  Context& context = runtime_.context();
  if (states_) states_->move(step.state_moves);
  for (const BlockCopy& copy : step.block_copies) runtime_.kv().copy_block(context, copy.from, copy.to);
  sequences_.clear();
  logit_rows_.clear();
  std::int32_t row = 0;
  const std::int32_t* blocks = step.blocks.data();
  for (const StepSpan& span : step.spans) {
    const auto num_blocks = static_cast<std::size_t>(span.num_blocks);
    sequences_.push_back({row, span.num_rows, span.start, {blocks, num_blocks}, span.slot, span.chunked});
    for (std::int32_t target = 0; target < span.num_targets; ++target) logit_rows_.push_back(row + target);
    row += span.num_rows;
    for (std::int32_t wanted = row - span.num_logits; wanted < row; ++wanted) logit_rows_.push_back(wanted);
    blocks += num_blocks;
  }
  const auto vocab = static_cast<std::size_t>(runtime_.model().shape().vocab_size);
  float* logits = logits_.reserve<float>(context.device, logit_rows_.size() * vocab);
  Caches caches = runtime_.caches();
  runtime_.model().forward(context, {step.tokens, sequences_, logit_rows_}, caches, logits);
  output_.target_logprobs.clear();
  if (!step.targets.empty()) add_target_logprobs(step);
  return output_;
}

void StepRunner::add_target_logprobs(const StepInput& step) {
  logprob_rows_.clear();
  std::int64_t logit_row = 0;
  const std::int32_t* target = step.targets.data();
  for (const StepSpan& span : step.spans) {
    for (std::int32_t index = 0; index < span.num_targets; ++index) {
      const auto position = static_cast<std::int32_t>(span.start + index + 1);
      logprob_rows_.push_back({{logit_row + index, *target++, span.num_top}, position});
    }
    logit_row += span.num_targets + span.num_logits;
  }
  append_logprobs(runtime_.context(), logits(), logprob_rows_, output_.target_logprobs);
}

}  // namespace pocket
