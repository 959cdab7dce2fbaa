// Products of activation rows with stored weight matrices, in the weights' own block formats.
//
// Contract of every implementation: an output element depends on its activation row and its weight row alone, and is
// reduced in one order, so it has the same bits whatever other rows are in the call and however many threads there are.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/dtype.h"
#include "kernels/context.h"

namespace pocket {

// How activations enter a product.
enum class Activation {
  kInt8,     // quantised per row in groups of 32, for weights stored in blocks; exact for plain float weights
  kFloat32,  // exact: weights are dequantised in registers
};

// Rows of one stored tensor that become rows of a Matrix; all in host memory.
struct MatrixPart {
  DType dtype = DType::kF32;
  const std::byte* data = nullptr;  // row-major, each row `row_bytes(dtype, num_columns)` long
  std::int64_t num_rows = 0;
  // F8_E4M3 alone: value = code * scale[row / scale_rows][column / scale_columns]; ragged last tiles are allowed.
  const float* scales = nullptr;
  std::int64_t scale_rows = 0;
  std::int64_t scale_columns = 0;
  // Optional [num_rows]: row i of this part is row source_rows[i] of `data`.
  const std::int32_t* source_rows = nullptr;
};

// A weight matrix [num_rows, num_columns], packed for the device's product. Immutable; any thread may read it.
class Matrix : public DeviceObject {
 public:
  using DeviceObject::DeviceObject;
  virtual std::int64_t num_rows() const noexcept = 0;
  virtual std::int64_t num_columns() const noexcept = 0;
  virtual std::size_t num_bytes() const noexcept = 0;
};

// Packs the parts, stacked in order; parts may differ in dtype. The stored bytes are not needed afterwards.
// Throws Error(kUnsupportedFeature) for a dtype that is not a weight type or a column count the type cannot have.
std::unique_ptr<const Matrix> pack_matrix(Context& context, std::span<const MatrixPart> parts, std::int64_t num_columns,
                                          Activation activation);

// Activation rows in the form that matrices of any format read; made once and used by several products.
class ActivationRows {
 public:
  // Takes x [num_rows, num_columns], rows `stride` floats apart. x must live and stay unchanged while this is used.
  void assign(Context& context, const float* x, std::int64_t num_rows, std::int64_t num_columns, std::int64_t stride,
              Activation activation);

  // As the device keeps them; made by the first assign.
  const DeviceObject& on_device() const noexcept { return *on_device_; }

 private:
  std::unique_ptr<DeviceObject> on_device_;
};

enum class Store { kAssign, kAdd };

// y [num_rows, matrix.num_rows()] = x * matrix^T + bias, or y += that; rows of y are `stride` floats apart.
// bias: [matrix.num_rows()] or nullptr.
void multiply(Context& context, const Matrix& matrix, const ActivationRows& x, const float* bias, float* y,
              std::int64_t stride, Store store);

// out [num_ids, num_columns]: rows `ids` of a stored table, dequantised (an embedding look-up). Table and ids are in
// device memory.
void gather_rows(Context& context, DType dtype, const std::byte* table, std::int64_t num_columns,
                 const std::int32_t* ids, std::int64_t num_ids, float* out);

}  // namespace pocket
