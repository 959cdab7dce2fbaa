// The reference device: its memory is where host code cannot reach it by accident.
//
// An address it gives out is reserved and never mapped, so host code that reads or writes through one ends by a signal.
// The content lies elsewhere; `reach` finds it, for operations and copies alone, and refuses what is not inside one
// allocation: host memory, freed memory, and an end beyond the allocation's.
#pragma once

#include <cstdint>

#include "kernels/context.h"

namespace pocket::reference {

Device& device() noexcept;

// The content at a device address. Throws Error(kEngine) when the bytes are not within one allocation.
std::byte* reach_bytes(const void* data, std::size_t num_bytes);

// `count` elements at a device address, as the operations of this device read and write them; nullptr for none.
template <class T>
T* reach(T* data, std::int64_t count) {
  if (count <= 0) return nullptr;
  return reinterpret_cast<T*>(reach_bytes(data, static_cast<std::size_t>(count) * sizeof(T)));
}

// The same for rows of `width` elements, `stride` apart.
template <class T>
T* reach_rows(T* data, std::int64_t num_rows, std::int64_t width, std::int64_t stride) {
  return num_rows <= 0 ? nullptr : reach(data, (num_rows - 1) * stride + width);
}

}  // namespace pocket::reference
