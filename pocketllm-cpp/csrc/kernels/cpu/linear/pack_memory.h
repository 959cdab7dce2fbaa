// Memory of packed matrices, cut from pieces that are large enough for huge pages.
#pragma once

#include <cstddef>
#include <memory>

#include "core/buffer.h"

namespace pocket::cpu {

// `size` bytes for one matrix, aligned to a cache line and zero. The piece goes back to the system with its last owner.
struct PackedMemory {
  std::shared_ptr<Buffer> piece;
  std::byte* data = nullptr;
  std::size_t size = 0;
};

// Decoding reads all weights for every token: with pages of 4 KiB it spends a sixth of its time on finding them, and a
// layer's matrices are smaller than a huge page. So matrices packed one after the other share a piece. Any thread may
// call this. Throws std::bad_alloc.
PackedMemory packed_memory(std::size_t num_bytes);

}  // namespace pocket::cpu
