// How the rows of a step belong to sequences.
#pragma once

#include <cstdint>
#include <span>

namespace pocket {

// Consecutive rows of a step's arrays that hold consecutive positions of one sequence.
struct SequenceRows {
  std::int32_t first_row = 0;  // in the step's arrays
  std::int32_t num_rows = 0;
  std::int64_t position = 0;  // of the first row in its sequence; everything before it is in the cache
  // Cache blocks: position p lies in blocks[p / block_size], at p % block_size. Covers all rows of this step.
  std::span<const std::int32_t> blocks;
  std::int32_t state_slot = -1;  // where the recurrent state is, for models that have one
  // The rows are part of a prompt and are computed in chunks (kernels/delta_net.h); otherwise one by one.
  bool chunked = false;
};

}  // namespace pocket
