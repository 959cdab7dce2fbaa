// The reference device's matrices and rows of activations.
#pragma once

#include "core/device.h"
#include "kernels/linear.h"

namespace pocket::reference {

// Every weight as the float that its format defines.
class FloatMatrix final : public Matrix {
 public:
  FloatMatrix(Context& context, std::span<const MatrixPart> parts, std::int64_t num_columns, Activation activation);

  std::int64_t num_rows() const noexcept override { return num_rows_; }
  std::int64_t num_columns() const noexcept override { return num_columns_; }
  std::size_t num_bytes() const noexcept override { return weights_.size(); }
  Activation activation() const noexcept { return activation_; }
  const float* weights() const noexcept { return weights_.as<float>(); }  // [num_rows, num_columns]

 private:
  std::int64_t num_rows_ = 0;
  std::int64_t num_columns_;
  Activation activation_;
  DeviceBuffer weights_;
};

// Activations enter products as they are, whatever their Activation says.
struct FloatRows final : DeviceObject {
  using DeviceObject::DeviceObject;

  const float* x = nullptr;
  std::int64_t num_rows = 0;
  std::int64_t num_columns = 0;
  std::int64_t stride = 0;
  Activation activation = Activation::kFloat32;
};

// The sum over the columns of one row and one weight row, both of content.
float dot(const float* x, const float* weights, std::int64_t num_columns) noexcept;

}  // namespace pocket::reference
