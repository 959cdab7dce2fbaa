// How a sequence's recurrent state lies in its slot: per layer the states of all heads, then the convolution's tail.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/buffer.h"
#include "kernels/delta_net.h"

namespace pocket::cpu {

inline std::int64_t recurrent_floats(const DeltaNetShape& shape) noexcept {
  return std::int64_t{shape.num_value_heads} * shape.key_dim * shape.value_dim;
}

// Of one layer, whole cache lines.
inline std::int64_t layer_floats(const DeltaNetShape& shape) noexcept {
  constexpr std::int64_t kLine = Buffer::kAlignment / sizeof(float);
  const std::int64_t count = recurrent_floats(shape) + (shape.kernel_size - 1) * shape.conv_channels();
  return (count + kLine - 1) / kLine * kLine;
}

inline float* recurrent(DeltaNetStates& states, std::int32_t slot, std::int32_t layer) noexcept {
  return reinterpret_cast<float*>(states.slot(slot)) + layer * layer_floats(states.shape());
}

// [kernel_size - 1, conv_channels], oldest first.
inline float* conv_tail(DeltaNetStates& states, std::int32_t slot, std::int32_t layer) noexcept {
  return recurrent(states, slot, layer) + recurrent_floats(states.shape());
}

}  // namespace pocket::cpu
