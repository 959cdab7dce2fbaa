#include "kernels/reference/linear.h"

#include <vector>

#include "core/error.h"
#include "kernels/dequantize.h"
#include "kernels/reference/memory.h"
#include "kernels/reference/operations.h"

namespace pocket::reference {
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

void assign_rows(Context& context, DeviceObject& object, const float* x, std::int64_t num_rows,
                 std::int64_t num_columns, std::int64_t stride, Activation activation) {
  auto& rows = own<FloatRows>(context, object, "Activation rows");
  rows.x = x;
  rows.num_rows = num_rows;
  rows.num_columns = num_columns;
  rows.stride = stride;
  rows.activation = activation;
}

void multiply(Context& context, const Matrix& any_matrix, const ActivationRows& any_rows, const float* bias, float* y,
              std::int64_t stride, Store store) {
  const auto& matrix = own<const FloatMatrix>(context, any_matrix, "A weight matrix");
  const auto& rows = own<const FloatRows>(context, any_rows.on_device(), "Activation rows");
  if (rows.num_columns != matrix.num_columns() || rows.activation != matrix.activation()) {
    throw Error(ErrorKind::kEngine, "Activation rows of " + std::to_string(rows.num_columns) +
                                        " columns do not fit a matrix of " + std::to_string(matrix.num_columns()) +
                                        " columns, or their Activation differs from the matrix's.");
  }
  const std::int64_t num_outputs = matrix.num_rows();
  const float* x = reach_rows(rows.x, rows.num_rows, rows.num_columns, rows.stride);
  const float* weights = reach(matrix.weights(), num_outputs * rows.num_columns);
  const float* biases = bias == nullptr ? nullptr : reach(bias, num_outputs);
  float* out = reach_rows(y, rows.num_rows, num_outputs, stride);
  context.threads.run(rows.num_rows, [&](std::int64_t row, int) {
    for (std::int64_t index = 0; index < num_outputs; ++index) {
      float value = dot(x + row * rows.stride, weights + index * rows.num_columns, rows.num_columns);
      if (biases != nullptr) value += biases[index];
      float& to = out[row * stride + index];
      to = store == Store::kAdd ? to + value : value;
    }
  });
}

void gather_rows(Context&, DType dtype, const std::byte* table, std::int64_t num_columns, const std::int32_t* ids,
                 std::int64_t num_ids, float* out) {
  const std::int32_t* wanted = reach(ids, num_ids);
  float* to = reach(out, num_ids * num_columns);
  const std::size_t stored_bytes = row_bytes(dtype, num_columns);
  for (std::int64_t index = 0; index < num_ids; ++index) {
    const std::byte* row = table + static_cast<std::size_t>(wanted[index]) * stored_bytes;
    dequantize_row(dtype, reach(row, static_cast<std::int64_t>(stored_bytes)), num_columns, to + index * num_columns);
  }
}

}  // namespace

FloatMatrix::FloatMatrix(Context& context, std::span<const MatrixPart> parts, std::int64_t num_columns,
                         Activation activation)
    : Matrix(context.device), num_columns_(num_columns), activation_(activation) {
  for (const MatrixPart& part : parts) num_rows_ += part.num_rows;
  weights_ = DeviceBuffer(context.device, static_cast<std::size_t>(num_rows_ * num_columns) * sizeof(float));
  float* to = reach(weights_.as<float>(), num_rows_ * num_columns);
  for (const MatrixPart& part : parts) {
    for (std::int64_t index = 0; index < part.num_rows; ++index, to += num_columns) {
      dequantize_part_row(part, index, num_columns, to);
    }
  }
}

float dot(const float* x, const float* weights, std::int64_t num_columns) noexcept {
  double sum = 0.0;
  for (std::int64_t k = 0; k < num_columns; ++k) sum += double{weights[k]} * double{x[k]};
  return static_cast<float>(sum);
}

void add_linear(Operations& table) noexcept {
  table.pack_matrix = [](Context& context, std::span<const MatrixPart> parts, std::int64_t num_columns,
                         Activation activation) -> std::unique_ptr<const Matrix> {
    return std::make_unique<FloatMatrix>(context, parts, num_columns, activation);
  };
  table.make_activation_rows = [](Context& context) -> std::unique_ptr<DeviceObject> {
    return std::make_unique<FloatRows>(context.device);
  };
  table.assign_activation_rows = assign_rows;
  table.multiply = multiply;
  table.gather_rows = gather_rows;
}

}  // namespace pocket::reference
