// What a step computes, as plain numbers, and what comes back.
//
// A step can be written to bytes and sent: every process that holds the model, or its part of it, executes the same one
// (StepRunner). Nothing here points to a sequence, to a block's memory or to a state's.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request.h"

namespace pocket {

// Neighbouring positions of one sequence, one row each. The last `num_draft` rows hold proposals, which may turn out to
// be other tokens.
struct StepSpan {
  std::int64_t start = 0;        // position of the first row; everything before it is in the cache
  std::int32_t num_rows = 0;     // of StepInput::tokens
  std::int32_t num_blocks = 0;   // of StepInput::blocks: the sequence's, from its first position on
  std::int32_t num_draft = 0;
  std::int32_t num_logits = 0;   // of how many of the last rows the logits are wanted
  std::int32_t num_targets = 0;  // of StepInput::targets
  std::int32_t num_top = 0;      // alternatives to list beside each target
  std::int32_t slot = -1;        // the sequence's place in the batch, where a recurrent state lies
  bool chunked = false;          // the rows are part of a prompt (kernels/sequence_rows.h)
};

struct BlockCopy {
  std::int32_t from = 0, to = 0;
};

// States lie in places: first those of the slots, then those of the snapshots.
struct StateMove {
  std::int32_t from = -1;  // -1: the state of a sequence that starts at position 0
  std::int32_t to = 0;
};

// Every array holds what belongs to the first span, then what belongs to the second, and so on.
struct StepInput {
  std::vector<StepSpan> spans;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> blocks;
  // Tokens whose log probabilities are wanted: target i of a span is predicted by its row i.
  std::vector<std::int32_t> targets;
  // Made in order, before anything is computed.
  std::vector<BlockCopy> block_copies;
  std::vector<StateMove> state_moves;
};

struct StepOutput {
  std::vector<Logprob> target_logprobs;  // `row` is the target's position
};

}  // namespace pocket
