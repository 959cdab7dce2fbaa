// The inner loops of Gated DeltaNet, one table per instruction set.
//
// Arrays of a head are rows of whole vectors: `padded_key` and `padded_value` are key_dim and value_dim rounded up to
// 16, and the padding of values is zero. Sums over key_dim and over positions go in ascending order, one chain per
// element.
#pragma once

#include <cstdint>

#include "kernels/delta_net.h"

namespace pocket::cpu {

inline constexpr std::int64_t kSegmentRows = DeltaNetShape::kSegmentLength;
inline constexpr std::int64_t kStrip = 64;

// What one key head computes with; all memory belongs to the task.
struct DeltaNetScratch {
  std::int64_t key_dim = 0, padded_key = 0, padded_value = 0;
  // All value heads of the key head.
  float* queries = nullptr;          // [kSegmentRows, padded_key]
  float* keys = nullptr;             // [kSegmentRows, padded_key]
  float* transposed_keys = nullptr;  // [key_dim, kSegmentRows]; segments only, as what follows
  float* query_key = nullptr;        // [kSegmentRows, kSegmentRows], lower triangle
  float* key_key = nullptr;          // [kSegmentRows, kSegmentRows], lower triangle
  // One value head.
  float* values = nullptr;       // [kSegmentRows, padded_value]
  float* outputs = nullptr;      // [kSegmentRows, padded_value]
  float* state = nullptr;        // [key_dim, padded_value]
  // [kSegmentRows, kSegmentRows]: what turns earlier rows' corrected values into later ones', and into outputs.
  float* solve = nullptr;
  float* attend = nullptr;
  float* scaled_keys = nullptr;  // [key_dim, kSegmentRows]
  // kStrip columns of value_dim, contiguous, so that they stay in the first-level cache.
  float* state_strip = nullptr;  // [key_dim, kStrip]
  float* corrected = nullptr;    // [kSegmentRows, kStrip]
};

// Per row of a value head: g, the logarithm of its decay (at most 0), and beta.
struct DeltaNetGates {
  float decay[kSegmentRows];  // e^g
  float beta[kSegmentRows];
  // The sum of g up to the row within the segment, as high + low.
  float high[kSegmentRows];
  float low[kSegmentRows];
};

struct DeltaNetKernels {
  // out [kernel_size, stride] = taps [count, kernel_size] transposed.
  void (*transpose_taps)(const float* taps, std::int64_t kernel_size, std::int64_t count, std::int64_t stride,
                         float* out);
  // out [count] = silu(sum over t of taps[t] * inputs[t]), in the order of t. `next` [count] is fetched for later: rows
  // lie far apart, where no hardware looks ahead.
  void (*convolve)(const float* const* inputs, const float* next, const float* taps, std::int64_t kernel_size,
                   std::int64_t count, std::int64_t stride, float* out);
  // x *= factor / sqrt(sum(x^2) + 1e-6)
  void (*normalize)(std::int64_t count, float factor, float* x);
  // outputs[0] and state from row 0 of queries, keys and values.
  void (*step)(const DeltaNetScratch& scratch, float decay, float beta);
  // transposed_keys, query_key and key_key of `num_rows` rows.
  void (*compare_keys)(const DeltaNetScratch& scratch, std::int64_t num_rows);
  // outputs and state from num_rows rows.
  void (*segment)(const DeltaNetScratch& scratch, const DeltaNetGates& gates, std::int64_t num_rows);
  // y = rmsnorm(x) * norm * silu(z); `next` as above.
  void (*finish)(const float* x, const float* z, const float* next, const float* norm, float eps, std::int64_t count,
                 float* y);
};

template <class V>
struct DeltaNetKernelsOf {
  static const DeltaNetKernels& table() noexcept;
};

}  // namespace pocket::cpu
