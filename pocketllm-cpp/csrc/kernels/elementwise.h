// Row-wise operations between the products, on device memory. Each row is computed on its own, in one order.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/context.h"
#include "kernels/sequence_rows.h"

namespace pocket {

// y = x * rsqrt(mean(x^2) + eps) * weight over rows of `num_columns`, strides in floats; y may be x.
// Several heads per row: x is [num_rows, num_groups, num_columns] with the groups side by side, one weight for all.
struct NormShape {
  std::int64_t num_rows = 0;
  std::int64_t num_groups = 1;
  std::int64_t num_columns = 0;
  std::int64_t x_stride = 0;
  std::int64_t y_stride = 0;
  float eps = 1e-6f;
};
void rms_norm(Context& context, const NormShape& shape, const float* x, const float* weight, float* y);

enum class RotaryStyle {
  kHalves,       // pairs (i, i + d/2): Hugging Face's layout
  kInterleaved,  // pairs (2i, 2i + 1): GGUF's layout of the llama family
};

// Cosines and sines of position * frequency, times a factor: per position [rotary_dim / 2] cosines and as many sines.
struct RotaryTable {
  const float* data = nullptr;
  std::int64_t rotary_dim = 0;
};

// Fills data [num_positions, 2 * inverse_frequencies.size()] of such a table. Angles are computed in double precision.
void fill_rotary_table(Context& context, std::span<const double> inverse_frequencies, double factor,
                       std::int64_t num_positions, float* data);

// Rotates the first rotary_dim elements of each of `num_heads` heads of `head_dim` in every row, in place.
void rotate(Context& context, const RotaryTable& table, RotaryStyle style, const SequenceTable& sequences,
            std::int32_t num_heads, std::int32_t head_dim, float* x, std::int64_t stride);

enum class Gate { kSilu, kGeluTanh, kSigmoid };

// y = act(gate) * up; gate, up: [num_rows, num_columns], rows of both `stride` floats apart; y rows y_stride apart.
void gated(Context& context, Gate gate_kind, std::int64_t num_rows, std::int64_t num_columns, const float* gate,
           const float* up, std::int64_t stride, float* y, std::int64_t y_stride);

void scale_rows(Context& context, std::int64_t num_elements, float factor, float* x);
// y += x
void add_rows(Context& context, std::int64_t num_elements, const float* x, float* y);

// Moves rows[i] of x to row i, for `num_kept` ascending rows in device memory; `width` floats each, `stride` apart.
void keep_rows(Context& context, const std::int32_t* rows, std::int64_t num_kept, std::int64_t width,
               std::int64_t stride, float* x);

}  // namespace pocket
