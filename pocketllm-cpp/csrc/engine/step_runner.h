// Runs steps: flat rows in, one forward pass, logits out.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/device.h"
#include "engine/logprobs.h"
#include "engine/runtime.h"
#include "engine/state_places.h"
#include "engine/step.h"

namespace pocket {

// One model in this process. With several ranks each has a runner, with its part of the weights and of the caches: the
// first sends the step to the others, all execute it in the same order, and the first alone reads the logits.
//
// Keeps its arrays between steps, so that a step allocates nothing once they have grown. Threads: the engine's alone.
class StepRunner {
 public:
  // `vocab_size`: ids that may be generated; the model's rows past it are padding.
  StepRunner(Runtime& runtime, std::int64_t vocab_size);

  // Makes the step's copies and moves, computes its rows and stores their keys, values and states. The output is valid
  // until the next call, and the caller may take its log probabilities. Throws what the model throws; the rows, copies
  // and moves of the step are lost then.
  StepOutput& execute(const StepInput& step);
  // Raw: for each span the rows of its targets, then those that num_logits asks for; valid until the next step.
  LogitRows logits() const noexcept {
    return {logits_.as<float>(), runtime_.model().shape().vocab_size, vocab_size_};
  }

 private:
  void add_target_logprobs(const StepInput& step);

  Runtime& runtime_;
  std::int64_t vocab_size_;
  std::optional<StatePlaces> states_;  // of models with recurrent state
  std::vector<SequenceRows> sequences_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<WantedLogprob> logprob_rows_;
  DeviceBuffer logits_;
  StepOutput output_;
};

}  // namespace pocket
