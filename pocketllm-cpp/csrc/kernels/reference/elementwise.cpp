#include "kernels/elementwise.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/reference/memory.h"
#include "kernels/reference/operations.h"

namespace pocket::reference {
namespace {

void rms_norm(Context&, const NormShape& shape, const float* x, const float* weight, float* y) {
  const std::int64_t width = shape.num_groups * shape.num_columns;
  const float* from = reach_rows(x, shape.num_rows, width, shape.x_stride);
  float* to = reach_rows(y, shape.num_rows, width, shape.y_stride);
  const float* weights = reach(weight, shape.num_columns);
  for (std::int64_t row = 0; row < shape.num_rows; ++row) {
    for (std::int64_t group = 0; group < shape.num_groups; ++group) {
      const float* in = from + row * shape.x_stride + group * shape.num_columns;
      float* out = to + row * shape.y_stride + group * shape.num_columns;
      double squares = 0.0;
      for (std::int64_t i = 0; i < shape.num_columns; ++i) squares += double{in[i]} * double{in[i]};
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(shape.num_columns) + double{shape.eps});
      for (std::int64_t i = 0; i < shape.num_columns; ++i) {
        out[i] = static_cast<float>(in[i] * factor * double{weights[i]});
      }
    }
  }
}

void fill_rotary_table(Context&, std::span<const double> inverse_frequencies, double factor,
                       std::int64_t num_positions, float* data) {
  const auto num_pairs = static_cast<std::int64_t>(inverse_frequencies.size());
  float* row = reach(data, num_positions * 2 * num_pairs);
  for (std::int64_t position = 0; position < num_positions; ++position, row += 2 * num_pairs) {
    for (std::int64_t i = 0; i < num_pairs; ++i) {
      const double angle = static_cast<double>(position) * inverse_frequencies[static_cast<std::size_t>(i)];
      row[i] = static_cast<float>(std::cos(angle) * factor);
      row[num_pairs + i] = static_cast<float>(std::sin(angle) * factor);
    }
  }
}

void rotate(Context& context, const RotaryTable& table, RotaryStyle style, const SequenceTable& sequences,
            std::int32_t num_heads, std::int32_t head_dim, float* x, std::int64_t stride) {
  const std::int64_t num_pairs = table.rotary_dim / 2;
  const std::int64_t width = std::int64_t{num_heads} * head_dim;
  for (const SequenceRows& sequence : rows_of(context, sequences)) {
    const float* angles = reach_rows(table.data + sequence.position * table.rotary_dim, sequence.num_rows,
                                     table.rotary_dim, table.rotary_dim);
    float* rows = reach_rows(x + sequence.first_row * stride, sequence.num_rows, width, stride);
    for (std::int64_t row = 0; row < sequence.num_rows; ++row) {
      for (std::int64_t head = 0; head < num_heads; ++head) {
        float* values = rows + row * stride + head * head_dim;
        for (std::int64_t i = 0; i < num_pairs; ++i) {
          const double cosine = angles[row * table.rotary_dim + i];
          const double sine = angles[row * table.rotary_dim + num_pairs + i];
          float& first = values[style == RotaryStyle::kHalves ? i : 2 * i];
          float& second = values[style == RotaryStyle::kHalves ? i + num_pairs : 2 * i + 1];
          const double a = first, b = second;
          first = static_cast<float>(a * cosine - b * sine);
          second = static_cast<float>(b * cosine + a * sine);
        }
      }
    }
  }
}

double activated(Gate gate_kind, double x) {
  switch (gate_kind) {
    case Gate::kSilu: return x / (1.0 + std::exp(-x));
    case Gate::kGeluTanh: {
      const double inner = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      return 0.5 * x * (1.0 + std::tanh(inner));
    }
    case Gate::kSigmoid: break;
  }
  return 1.0 / (1.0 + std::exp(-x));
}

void gated(Context&, Gate gate_kind, std::int64_t num_rows, std::int64_t num_columns, const float* gate,
           const float* up, std::int64_t stride, float* y, std::int64_t y_stride) {
  const float* gates = reach_rows(gate, num_rows, num_columns, stride);
  const float* ups = reach_rows(up, num_rows, num_columns, stride);
  float* out = reach_rows(y, num_rows, num_columns, y_stride);
  for (std::int64_t row = 0; row < num_rows; ++row) {
    for (std::int64_t i = 0; i < num_columns; ++i) {
      const double value = activated(gate_kind, gates[row * stride + i]) * double{ups[row * stride + i]};
      out[row * y_stride + i] = static_cast<float>(value);
    }
  }
}

void scale_rows(Context&, std::int64_t num_elements, float factor, float* x) {
  float* values = reach(x, num_elements);
  for (std::int64_t i = 0; i < num_elements; ++i) values[i] *= factor;
}

void add_rows(Context&, std::int64_t num_elements, const float* x, float* y) {
  const float* from = reach(x, num_elements);
  float* to = reach(y, num_elements);
  for (std::int64_t i = 0; i < num_elements; ++i) to[i] += from[i];
}

void keep_rows(Context&, const std::int32_t* rows, std::int64_t num_kept, std::int64_t width, std::int64_t stride,
               float* x) {
  const std::int32_t* wanted = reach(rows, num_kept);
  if (num_kept == 0) return;
  float* values = reach_rows(x, wanted[num_kept - 1] + 1, width, stride);
  for (std::int64_t index = 0; index < num_kept; ++index) {
    for (std::int64_t i = 0; i < width; ++i) values[index * stride + i] = values[wanted[index] * stride + i];
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

}  // namespace pocket::reference
