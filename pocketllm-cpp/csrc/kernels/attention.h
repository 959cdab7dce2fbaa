// The paged key-value cache and causal attention over it.
//
// Contract: the result of a row depends on its query, its position and the cached keys and values alone, reduced in the
// order of positions, so it has the same bits whatever the batch, the chunking of the prompt and the threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

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
  KvType type = KvType::kF16;

  static constexpr std::int32_t kBlockSize = 16;  // positions per block: one vector of scores
};

class KvCache {
 public:
  explicit KvCache(const KvShape& shape);  // contents zero
  ~KvCache();
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;

  const KvShape& shape() const noexcept;
  std::size_t num_bytes() const noexcept;
  // What one block takes in all layers together.
  static std::size_t block_bytes(const KvShape& shape) noexcept;
  // Copies every layer's content of one block: for sequences that part inside a block.
  void copy_block(std::int32_t from, std::int32_t to) noexcept;

  struct State;
  State& state() noexcept { return *state_; }
  const State& state() const noexcept { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// Writes keys and values of all rows of `sequences` at their positions. k, v: [num_rows, num_kv_heads * head_dim], rows
// `stride` floats apart; keys are rotated already.
void store_kv(Context& context, KvCache& cache, std::int32_t layer, std::span<const SequenceRows> sequences,
              const float* k, const float* v, std::int64_t stride);

struct AttentionShape {
  std::int32_t num_heads = 0;  // query head h reads key-value head h / (num_heads / num_kv_heads)
  float scale = 1.0f;          // of the scores
  std::int32_t window = 0;     // 0: every earlier position; else key j is seen by query i when i - window < j <= i
};

// out [num_rows, num_heads * head_dim] = attention of q over each sequence's cached positions up to the row's own.
void attend(Context& context, const KvCache& cache, std::int32_t layer, const AttentionShape& shape,
            std::span<const SequenceRows> sequences, const float* q, std::int64_t q_stride, float* out,
            std::int64_t out_stride);

// The slow reference of `attend`, in double precision, over the same cache content.
void attend_reference(const KvCache& cache, std::int32_t layer, const AttentionShape& shape,
                      std::span<const SequenceRows> sequences, const float* q, std::int64_t q_stride, float* out,
                      std::int64_t out_stride);

}  // namespace pocket
