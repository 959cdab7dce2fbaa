// Memory for states of fixed size, whatever the number of positions: one slot for each sequence that runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device.h"
#include "kernels/context.h"

namespace pocket {

// What lies in a slot is known to the operation that computes with it.
class RecurrentStates {
 public:
  // `slot_bytes`: of all layers together. Throws Error(kConfiguration) for impossible sizes.
  RecurrentStates(Context& context, std::size_t slot_bytes, std::int32_t num_slots);

  const Device& device() const noexcept { return *data_.device(); }
  std::size_t slot_bytes() const noexcept { return slot_bytes_; }
  // All layers of one slot, contiguous in device memory: what a snapshot copies.
  std::byte* slot(std::int32_t index) noexcept { return data_.data() + static_cast<std::size_t>(index) * slot_bytes_; }

  // The slot's sequence starts at position 0.
  void clear(Context& context, std::int32_t slot);

 private:
  std::size_t slot_bytes_;
  DeviceBuffer data_;
};

}  // namespace pocket
