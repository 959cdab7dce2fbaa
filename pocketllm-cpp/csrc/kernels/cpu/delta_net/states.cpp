#include <cstring>
#include <string>

#include "core/error.h"
#include "kernels/delta_net.h"

namespace pocket {
namespace {

std::int64_t recurrent_floats(const DeltaNetShape& shape) noexcept {
  return std::int64_t{shape.num_value_heads} * shape.key_dim * shape.value_dim;
}

// Of one layer, whole cache lines.
std::int64_t layer_floats(const DeltaNetShape& shape) noexcept {
  constexpr std::int64_t kLine = Buffer::kAlignment / sizeof(float);
  const std::int64_t count = recurrent_floats(shape) + (shape.kernel_size - 1) * shape.conv_channels();
  return (count + kLine - 1) / kLine * kLine;
}

const DeltaNetShape& checked(const DeltaNetShape& shape, std::int32_t num_slots) {
  const bool positive = shape.num_layers > 0 && shape.num_key_heads > 0 && shape.num_value_heads > 0 &&
                        shape.key_dim > 0 && shape.value_dim > 0 && shape.kernel_size > 0 && num_slots > 0;
  if (!positive) {
    throw Error(ErrorKind::kConfiguration, "Every size of a DeltaNet state must be positive, and num_slots is " +
                                               std::to_string(num_slots) + ".");
  }
  if (shape.num_value_heads % shape.num_key_heads != 0) {
    throw Error(ErrorKind::kConfiguration,
                "linear_num_value_heads is " + std::to_string(shape.num_value_heads) +
                    "; it must be a multiple of linear_num_key_heads, " + std::to_string(shape.num_key_heads) + ".");
  }
  return shape;
}

}  // namespace

DeltaNetStates::DeltaNetStates(const DeltaNetShape& shape, std::int32_t num_slots)
    : shape_(checked(shape, num_slots)), data_(slot_bytes(shape) * static_cast<std::size_t>(num_slots)) {}

std::size_t DeltaNetStates::slot_bytes(const DeltaNetShape& shape) noexcept {
  return static_cast<std::size_t>(layer_floats(shape) * shape.num_layers) * sizeof(float);
}

std::span<std::byte> DeltaNetStates::slot(std::int32_t index) noexcept {
  const std::size_t num_bytes = slot_bytes(shape_);
  return {data_.data() + static_cast<std::size_t>(index) * num_bytes, num_bytes};
}

void DeltaNetStates::clear(std::int32_t index) noexcept {
  const std::span<std::byte> bytes = slot(index);
  std::memset(bytes.data(), 0, bytes.size());
}

float* DeltaNetStates::recurrent(std::int32_t slot_index, std::int32_t layer) noexcept {
  return reinterpret_cast<float*>(slot(slot_index).data()) + layer * layer_floats(shape_);
}

float* DeltaNetStates::conv_tail(std::int32_t slot_index, std::int32_t layer) noexcept {
  return recurrent(slot_index, layer) + recurrent_floats(shape_);
}

}  // namespace pocket
