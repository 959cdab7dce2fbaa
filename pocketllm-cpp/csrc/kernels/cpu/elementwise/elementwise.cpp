#include "kernels/elementwise.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/elementwise/kernels.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/simd/dispatch.h"

namespace pocket::cpu {
namespace {

const ElementwiseKernels& kernels() { return kernels_in_use<ElementwiseKernelsOf>(); }

void rms_norm(Context& context, const NormShape& shape, const float* x, const float* weight, float* y) {
  for_ranges(context, shape.num_rows, shape.num_groups * shape.num_columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t group = 0; group < shape.num_groups; ++group) {
        const std::int64_t offset = group * shape.num_columns;
        kernels().rms_norm(x + row * shape.x_stride + offset, weight, shape.eps, shape.num_columns,
                           y + row * shape.y_stride + offset);
      }
    }
  });
}

void fill_rotary_table(Context&, std::span<const double> inverse_frequencies, double factor,
                       std::int64_t num_positions, float* data) {
  const std::size_t num_pairs = inverse_frequencies.size();
  for (std::int64_t position = 0; position < num_positions; ++position, data += 2 * num_pairs) {
    for (std::size_t i = 0; i < num_pairs; ++i) {
      const double angle = static_cast<double>(position) * inverse_frequencies[i];
      data[i] = static_cast<float>(std::cos(angle) * factor);
      data[num_pairs + i] = static_cast<float>(std::sin(angle) * factor);
    }
  }
}

void rotate(Context& context, const RotaryTable& table, RotaryStyle style, const SequenceTable& sequences,
            std::int32_t num_heads, std::int32_t head_dim, float* x, std::int64_t stride) {
  const std::int64_t num_pairs = table.rotary_dim / 2;
  for (const SequenceRows& sequence : sequences.rows()) {
    for_ranges(context, sequence.num_rows, num_heads * table.rotary_dim, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const float* cosines = table.data + (sequence.position + row) * table.rotary_dim;
        kernels().rotate(style, cosines, cosines + num_pairs, num_pairs, num_heads, head_dim,
                         x + (sequence.first_row + row) * stride);
      }
    });
  }
}

void gated(Context& context, Gate gate_kind, std::int64_t num_rows, std::int64_t num_columns, const float* gate,
           const float* up, std::int64_t stride, float* y, std::int64_t y_stride) {
  for_ranges(context, num_rows, num_columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      kernels().gated(gate_kind, gate + row * stride, up + row * stride, num_columns, y + row * y_stride);
    }
  });
}

void scale_rows(Context& context, std::int64_t num_elements, float factor, float* x) {
  for_ranges(context, num_elements, 1, [&](std::int64_t begin, std::int64_t end) {
    kernels().scale(factor, end - begin, x + begin);
  });
}

void add_rows(Context& context, std::int64_t num_elements, const float* x, float* y) {
  for_ranges(context, num_elements, 1, [&](std::int64_t begin, std::int64_t end) {
    kernels().add(x + begin, end - begin, y + begin);
  });
}

void keep_rows(Context&, const std::int32_t* rows, std::int64_t num_kept, std::int64_t width, std::int64_t stride,
               float* x) {
  // Kept rows ascend, so none is overwritten before it has moved.
  for (std::int64_t index = 0; index < num_kept; ++index) {
    if (rows[index] == index) continue;
    std::memcpy(x + index * stride, x + rows[index] * stride, static_cast<std::size_t>(width) * sizeof(float));
  }
}

}  // namespace

void add_elementwise(Operations& table) noexcept {
  table.rms_norm = rms_norm;
  table.fill_rotary_table = fill_rotary_table;
  table.rotate = rotate;
  table.gated = gated;
  table.scale_rows = scale_rows;
  table.add_rows = add_rows;
  table.keep_rows = keep_rows;
}

}  // namespace pocket::cpu
