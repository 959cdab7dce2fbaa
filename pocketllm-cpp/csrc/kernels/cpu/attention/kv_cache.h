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
#include <span>

#include "kernels/attention.h"

namespace pocket::cpu {

inline constexpr std::int32_t kBlockSize = 16;  // positions per block: one vector of scores

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

// A cache as its layout reads it; Bytes is const or not.
template <class Bytes>
struct KvView {
  const KvShape& shape;
  KvLayout layout;
  Bytes* data;

  // Block 0 of a head; block b lies b * layout.block_stride further.
  Bytes* head(std::int32_t layer, std::int32_t kv_head) const noexcept {
    const std::int64_t index = std::int64_t{layer} * shape.num_kv_heads + kv_head;
    return data + index * layout.block_bytes;
  }
};

inline KvView<std::byte> view_of(KvCache& cache) noexcept {
  return {cache.shape(), KvLayout(cache.shape()), cache.data()};
}
inline KvView<const std::byte> view_of(const KvCache& cache) noexcept {
  return {cache.shape(), KvLayout(cache.shape()), cache.data()};
}

std::size_t block_bytes(const KvShape& shape);
void load_kv(Context& context, const KvCache& cache, std::int32_t layer, std::int32_t block, std::int32_t position,
             std::span<float> k, std::span<float> v);

}  // namespace pocket::cpu
