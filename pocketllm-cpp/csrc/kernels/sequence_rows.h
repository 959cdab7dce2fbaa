// How the rows of a step belong to sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/context.h"

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

// The sequences of a step, with what a device keeps of them in its own memory. Made once per step, read by every layer.
class SequenceTable {
 public:
  SequenceTable() = default;
  SequenceTable(Context& context, std::span<const SequenceRows> rows) { assign(context, rows); }

  // Takes `rows`, which must live and stay unchanged while this is used, and so must their blocks.
  void assign(Context& context, std::span<const SequenceRows> rows);

  std::span<const SequenceRows> rows() const noexcept { return rows_; }
  // What the device keeps; nullptr for devices that read `rows()`.
  const DeviceObject* on_device() const noexcept { return on_device_.get(); }

 private:
  std::span<const SequenceRows> rows_;
  std::unique_ptr<DeviceObject> on_device_;
};

}  // namespace pocket
