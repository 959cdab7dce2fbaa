// From a step's plan to logits: flat rows in, one forward pass, the rows that matter out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/device.h"
#include "engine/logprobs.h"
#include "engine/runtime.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"

namespace pocket {

// Keeps its arrays between steps, so that a step allocates nothing once they have grown. Threads: the engine's alone.
class StepRunner {
 public:
  // `vocab_size`: ids that may be generated; the model's rows past it are padding.
  StepRunner(Runtime& runtime, std::int64_t vocab_size) : runtime_(runtime), vocab_size_(vocab_size) {}

  // Computes every position of the plan and adds the prompt log probabilities that its sequences want. Returns the
  // sequences whose next token can be sampled, in the plan's order, with their rows of logits(); valid until the next
  // call.
  std::span<const SampleRow> execute(const StepPlan& plan);
  LogitRows logits() const noexcept {
    return {logits_.as<float>(), runtime_.model().shape().vocab_size, vocab_size_};
  }

 private:
  void add_prompt_logprobs(const StepPlan& plan);

  Runtime& runtime_;
  std::int64_t vocab_size_;
  std::vector<std::int32_t> tokens_;
  std::vector<SequenceRows> sequences_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<SampleRow> sampled_;
  std::vector<WantedLogprob> logprob_rows_;
  DeviceBuffer logits_;
};

}  // namespace pocket
