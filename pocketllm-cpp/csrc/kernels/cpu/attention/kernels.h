// The inner loops of attention, one table per instruction set.
//
// A row's result is built in one order that depends on absolute positions alone:
//   - positions come in segments of 256, each with a softmax state of its own, in spans of 64;
//   - a span's scores raise the row's largest score, earlier sums are rescaled, and each position's weight goes to the
//     sum of its lane (position mod 16) and, times its value, to the output, in the order of positions;
//   - segments are merged in order.
// Spans and segments in which a row sees nothing leave its state as it is, bit for bit: their weights are +0, the
// rescaling factor is 1, and what sign a zero has is lost in a merge, which adds +0 and which each row's state goes
// through. So rows may share a tile, and segments may be computed by different threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"

namespace pocket::cpu {

inline constexpr std::int32_t kSpan = 64;
inline constexpr std::int32_t kSegment = 256;
inline constexpr std::int32_t kLanes = 16;

// Query rows that read the same key-value head of one sequence: `num_heads` heads of consecutive positions, heads
// fastest.
struct AttentionTile {
  KvType type = KvType::kF16;
  std::int32_t head_dim = 0;
  std::int32_t padded_dim = 0;
  const std::byte* head = nullptr;  // block 0 of the key-value head
  std::int64_t block_stride = 0;
  std::int64_t values_offset = 0;
  std::int64_t scales_offset = 0;
  const std::int32_t* blocks = nullptr;
  std::int32_t num_rows = 0;
  std::int32_t num_heads = 0;
  std::int64_t position = 0;  // of row 0
  std::int32_t window = 0;
  const float* q = nullptr;  // [num_rows, head_dim], times scale / ln(2)
};

// Softmax over the positions seen so far, of each row.
struct AttentionState {
  float* largest = nullptr;  // [num_rows]
  float* sums = nullptr;     // [num_rows, kLanes]
  float* values = nullptr;   // [num_rows, padded_dim]

  static std::int64_t num_floats(std::int64_t num_rows, std::int64_t padded_dim) noexcept {
    return num_rows * (padded_dim + 2 * kLanes);
  }
  static AttentionState at(float* memory, std::int64_t num_rows, std::int64_t padded_dim) noexcept {
    return {memory + num_rows * (padded_dim + kLanes), memory + num_rows * padded_dim, memory};
  }
};

struct AttentionKernels {
  // Floats that attend_segment needs as scratch.
  std::int64_t (*scratch_floats)(const AttentionTile& tile);
  // state = softmax over the segment's positions; overwrites it.
  void (*attend_segment)(const AttentionTile& tile, std::int64_t segment, const AttentionState& state, float* scratch);
  // into = softmax over the positions of both, `into` the earlier ones.
  void (*merge)(std::int64_t num_rows, std::int64_t padded_dim, const AttentionState& from, const AttentionState& into);
  void (*clear)(std::int64_t num_rows, std::int64_t padded_dim, const AttentionState& state);
  // out [head_dim] = the row's weighted mean of values.
  void (*finish)(const AttentionState& state, std::int64_t row, std::int64_t padded_dim, std::int64_t head_dim,
                 float* out);
  void (*scale)(const float* x, float factor, std::int64_t count, float* out);
  // Writes one head's key and value [head_dim] at position `index` of its block.
  void (*store)(const AttentionTile& place, std::byte* block, std::int32_t index, const float* key, const float* value);
};

template <class V>
struct AttentionKernelsOf {
  static const AttentionKernels& table() noexcept;
};

}  // namespace pocket::cpu
