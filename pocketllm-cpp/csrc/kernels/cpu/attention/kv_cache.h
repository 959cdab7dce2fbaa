// Where keys and values lie in the cache's memory.
//
// Per layer, key-value head and block of 16 positions, contiguous:
//   keys    [head_dim][16 positions]: one vector holds 16 scores, and the sum over head_dim needs no lane reduction
//   values  [16 positions][padded_dim]: padded_dim is head_dim rounded up to whole vectors; the padding stays zero
//   Q8_0 only: key scales [16], value scales [16], float
// All heads of all layers of a block lie together: the cache lies in huge pages, and a short sequence then takes few of
// them. Were the blocks of a head together, one block would take a huge page in every head of every layer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/buffer.h"
#include "kernels/attention.h"

namespace pocket {

// Bytes of one element, without scales.
constexpr std::int64_t element_bytes(KvType type) noexcept {
  switch (type) {
    case KvType::kF32: return 4;
    case KvType::kF16: return 2;
    case KvType::kQ8_0: break;
  }
  return 1;
}

struct KvLayout {
  explicit KvLayout(const KvShape& shape) noexcept;

  std::int64_t padded_dim;
  std::int64_t values_offset;  // bytes from the start of a head's block
  std::int64_t scales_offset;
  std::int64_t block_bytes;   // of one head in one layer
  std::int64_t block_stride;  // from one block of a head to the next: all heads of all layers
};

struct KvCache::State {
  explicit State(const KvShape& cache_shape);

  KvShape shape;
  KvLayout layout;
  Buffer data;

  // Block 0 of a head; block b lies b * layout.block_stride further.
  std::byte* head(std::int32_t layer, std::int32_t kv_head) noexcept {
    const std::int64_t index = std::int64_t{layer} * shape.num_kv_heads + kv_head;
    return data.data() + index * layout.block_bytes;
  }
  const std::byte* head(std::int32_t layer, std::int32_t kv_head) const noexcept {
    return const_cast<State*>(this)->head(layer, kv_head);
  }

  // One element, as attention sees it.
  double key(std::int32_t layer, std::int32_t kv_head, std::int32_t block, std::int32_t slot, std::int32_t dim) const;
  double value(std::int32_t layer, std::int32_t kv_head, std::int32_t block, std::int32_t slot, std::int32_t dim) const;

 private:
  // Number `index` of the keys or values that lie `offset` bytes into a block; `scale` is its scale's number.
  double element(const std::byte* block, std::int64_t offset, std::int64_t index, std::int64_t scale) const noexcept;
};

}  // namespace pocket
