// Gated DeltaNet: the short causal convolution and the gated delta rule with its recurrent state (Yang et al., 2024,
// "Gated Delta Networks").
//
// Contract: as for attention, a row's result does not depend on the batch. Chunked and one-by-one forms round
// differently, so which one computes a position is fixed by the position itself: segments begin at multiples of
// kSegmentLength, and only whole prompts' rows are `chunked` (see engine/scheduler.h). Rows of a last segment that is not
// full have the bits they have in a full one; chunked rows that begin inside a segment form a shorter one up to its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/context.h"
#include "kernels/recurrent_states.h"
#include "kernels/sequence_rows.h"

namespace pocket {

struct DeltaNetShape {
  std::int32_t num_layers = 0;  // layers of this kind
  std::int32_t num_key_heads = 0;
  std::int32_t num_value_heads = 0;
  std::int32_t key_dim = 0;    // per head
  std::int32_t value_dim = 0;  // per head
  std::int32_t kernel_size = 4;
  // Value head j uses key head j / (value heads per key head), or j % num_key_heads when tiled (GGUF's order).
  bool tiled_value_heads = false;

  static constexpr std::int32_t kSegmentLength = 64;

  std::int64_t conv_channels() const noexcept {
    return std::int64_t{2} * num_key_heads * key_dim + std::int64_t{num_value_heads} * value_dim;
  }
};

// Slots as this operation sees them: per layer S [num_value_heads, key_dim, value_dim] and the last kernel_size - 1 rows
// that entered the convolution, all float. How they lie in a slot is the device's.
class DeltaNetStates {
 public:
  // Throws Error(kConfiguration) for impossible sizes, and for slots that are not of the size that the device takes.
  DeltaNetStates(const Context& context, RecurrentStates& slots, const DeltaNetShape& shape);

  const DeltaNetShape& shape() const noexcept { return shape_; }
  const Device& device() const noexcept { return slots_.device(); }
  std::byte* slot(std::int32_t index) noexcept { return slots_.slot(index); }

 private:
  RecurrentStates& slots_;
  DeltaNetShape shape_;
};

// Of all layers of the shape; as many times that of one layer.
std::size_t delta_net_slot_bytes(const Context& context, const DeltaNetShape& shape);

// Device memory, but for eps.
struct DeltaNetWeights {
  const float* conv = nullptr;     // [conv_channels, kernel_size], last tap on the current row
  const float* decay = nullptr;    // [num_value_heads]: -exp(A_log)
  const float* dt_bias = nullptr;  // [num_value_heads]
  const float* norm = nullptr;     // [value_dim], plain
  float eps = 1e-6f;
};

struct DeltaNetInputs {
  const float* mixed = nullptr;  // [rows, conv_channels]: q, k, v before the convolution
  const float* z = nullptr;      // [rows, num_value_heads * value_dim]
  const float* alpha = nullptr;  // [rows, num_value_heads]
  const float* beta = nullptr;   // [rows, num_value_heads]
  std::int64_t mixed_stride = 0, z_stride = 0, alpha_stride = 0, beta_stride = 0;
};

// out [rows, num_value_heads * value_dim] (stride out_stride): silu(conv(mixed)), the delta rule, then
// rmsnorm(o) * norm * silu(z). Moves the states of the sequences' slots past their rows.
void delta_net(Context& context, DeltaNetStates& states, std::int32_t layer, const DeltaNetWeights& weights,
               const SequenceTable& sequences, const DeltaNetInputs& inputs, float* out, std::int64_t out_stride);

}  // namespace pocket
