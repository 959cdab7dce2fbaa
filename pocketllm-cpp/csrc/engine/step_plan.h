// What the scheduler chose for a step, and the plain data that is made of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/sequence.h"
#include "engine/step.h"

namespace pocket {

// Positions `start` to `start + length` of a sequence; the last `num_draft` of them are those of its draft.
struct PlannedRows {
  Sequence* sequence = nullptr;
  std::int64_t start = 0;
  std::int64_t length = 0;
  bool chunked = false;
  std::int32_t num_draft = 0;

  // The next token is sampled behind these rows.
  bool completes() const noexcept { return start + length - num_draft == sequence->num_tokens(); }
  std::int64_t num_prompt_tokens() const noexcept;
};

// The work of one step: decoding sequences first. The copies and moves are to be made before it.
struct StepPlan {
  std::vector<PlannedRows> rows;
  std::size_t num_decodes = 0;
  std::vector<BlockCopy> block_copies;
  std::vector<StateMove> state_moves;
};

// Span i of `step` is made of plan.rows[i]. Keeps the step's arrays, so that nothing is allocated once they have grown.
void make_step(const StepPlan& plan, StepInput& step);

}  // namespace pocket
