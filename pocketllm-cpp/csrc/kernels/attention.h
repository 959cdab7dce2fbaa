// The paged key-value cache and causal attention over it.
//
// Contract: the result of a row depends on its query, its position and the cached keys and values alone, reduced in the
// order of positions, so it has the same bits whatever the batch, the chunking of the prompt and the threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/device.h"
#include "kernels/context.h"
#include "kernels/sequence_rows.h"

namespace pocket {

enum class KvType {
  kF16,
  kQ8_0,  // 8-bit codes, one scale per head and position
  kF32,   // as they were computed
};

struct KvShape {
  std::int32_t num_layers = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t num_blocks = 0;
  std::int32_t block_size = 0;  // positions per block: the device's, kv_block_size(context)
  KvType type = KvType::kF16;
};

// The positions of a block that the device's attention reads.
std::int32_t kv_block_size(const Context& context) noexcept;
// What one block takes in all layers together. Throws Error(kConfiguration) for a shape that the device cannot have.
std::size_t kv_block_bytes(const Context& context, const KvShape& shape);

// Blocks of device memory, one after another, zero at first. What lies where in a block is the device's.
class KvCache {
 public:
  KvCache(Context& context, const KvShape& shape);

  const KvShape& shape() const noexcept { return shape_; }
  const Device& device() const noexcept { return *data_.device(); }
  std::size_t block_bytes() const noexcept { return block_bytes_; }
  std::size_t num_bytes() const noexcept { return data_.size(); }
  std::byte* data() noexcept { return data_.data(); }
  const std::byte* data() const noexcept { return data_.data(); }

  // Copies every layer's content of one block: for sequences that part inside a block.
  void copy_block(Context& context, std::int32_t from, std::int32_t to);

 private:
  KvShape shape_;
  std::size_t block_bytes_;
  DeviceBuffer data_;
};

// Writes keys and values of all rows of `sequences` at their positions. k, v: [num_rows, num_kv_heads * head_dim], rows
// `stride` floats apart; keys are rotated already.
void store_kv(Context& context, KvCache& cache, std::int32_t layer, const SequenceTable& sequences, const float* k,
              const float* v, std::int64_t stride);

// The key and the value that attention sees at `position` of a block, to host memory: [num_kv_heads * head_dim] each.
void load_kv(Context& context, const KvCache& cache, std::int32_t layer, std::int32_t block, std::int32_t position,
             std::span<float> k, std::span<float> v);

struct AttentionShape {
  std::int32_t num_heads = 0;  // query head h reads key-value head h / (num_heads / num_kv_heads)
  float scale = 1.0f;          // of the scores
  std::int32_t window = 0;     // 0: every earlier position; else key j is seen by query i when i - window < j <= i
};

// out [num_rows, num_heads * head_dim] = attention of q over each sequence's cached positions up to the row's own.
void attend(Context& context, const KvCache& cache, std::int32_t layer, const AttentionShape& shape,
            const SequenceTable& sequences, const float* q, std::int64_t q_stride, float* out, std::int64_t out_stride);

}  // namespace pocket
