#include <vector>

#include "kernels/linear.h"

namespace pocket {
namespace {

// Row `index` of a part as floats, scales applied.
void dequantize_part_row(const MatrixPart& part, std::int64_t index, std::int64_t num_columns, float* out) {
  const std::int64_t source = part.source_rows == nullptr ? index : part.source_rows[index];
  const std::size_t stored_bytes = row_bytes(part.dtype, num_columns);
  dequantize_row(part.dtype, part.data + static_cast<std::size_t>(source) * stored_bytes, num_columns, out);
  if (part.dtype != DType::kF8E4M3 || part.scales == nullptr) return;
  const std::int64_t tiles_across = (num_columns + part.scale_columns - 1) / part.scale_columns;
  const float* scales = part.scales + source / part.scale_rows * tiles_across;
  for (std::int64_t k = 0; k < num_columns; ++k) out[k] *= scales[k / part.scale_columns];
}

}  // namespace

void multiply_reference(std::span<const MatrixPart> parts, std::int64_t num_columns, const float* x,
                        std::int64_t num_rows, float* y) {
  std::int64_t total = 0;
  for (const MatrixPart& part : parts) total += part.num_rows;
  std::vector<float> weights(static_cast<std::size_t>(num_columns));
  std::int64_t column = 0;
  for (const MatrixPart& part : parts) {
    for (std::int64_t index = 0; index < part.num_rows; ++index, ++column) {
      dequantize_part_row(part, index, num_columns, weights.data());
      for (std::int64_t row = 0; row < num_rows; ++row) {
        double sum = 0.0;
        for (std::int64_t k = 0; k < num_columns; ++k) {
          sum += static_cast<double>(weights[static_cast<std::size_t>(k)]) * x[row * num_columns + k];
        }
        y[row * total + column] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace pocket
