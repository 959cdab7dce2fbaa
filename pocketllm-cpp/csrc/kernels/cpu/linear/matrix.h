// The cpu layer's Matrix, and the products with a chosen table of kernels.
#pragma once

#include <utility>
#include <vector>

#include "core/buffer.h"
#include "kernels/cpu/linear/kernels.h"
#include "kernels/cpu/linear/pack_memory.h"
#include "kernels/linear.h"

namespace pocket::cpu {

// Consecutive rows of one dtype, as strips.
struct MatrixSegment {
  DType dtype = DType::kF32;
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::int64_t num_strips = 0;
  std::int64_t strip_bytes = 0;
  std::size_t offset = 0;  // of its first strip in the matrix's data
  std::int64_t scale_columns = 0;  // F8_E4M3
};

class PackedMatrix final : public Matrix {
 public:
  PackedMatrix(const Device& device, std::int64_t num_rows, std::int64_t num_columns, Activation activation,
               std::vector<MatrixSegment> segments, PackedMemory memory)
      : Matrix(device),
        num_rows_(num_rows),
        num_columns_(num_columns),
        activation_(activation),
        segments_(std::move(segments)),
        memory_(std::move(memory)) {}

  std::int64_t num_rows() const noexcept override { return num_rows_; }
  std::int64_t num_columns() const noexcept override { return num_columns_; }
  std::size_t num_bytes() const noexcept override { return memory_.size; }

  Activation activation() const noexcept { return activation_; }
  const std::vector<MatrixSegment>& segments() const noexcept { return segments_; }
  const std::byte* strip(const MatrixSegment& segment, std::int64_t index) const noexcept {
    return memory_.data + segment.offset + index * segment.strip_bytes;
  }

 private:
  std::int64_t num_rows_;
  std::int64_t num_columns_;
  Activation activation_;
  std::vector<MatrixSegment> segments_;
  PackedMemory memory_;
};

// Activation rows as given, and quantised when there is a need (kernels.h has the meaning of the arrays).
struct QuantisableRows final : DeviceObject {
  using DeviceObject::DeviceObject;

  const float* x = nullptr;
  std::int64_t num_rows = 0;
  std::int64_t num_columns = 0;
  std::int64_t stride = 0;
  Activation activation = Activation::kFloat32;
  std::int64_t num_units = 0;
  Buffer codes;   // int8 [num_rows, num_units * 64]
  Buffer scales;  // float [num_rows, num_units * 2]
  Buffer sums;    // int32 [num_rows, num_units * 4]
};

std::unique_ptr<const Matrix> pack_matrix(Context& context, std::span<const MatrixPart> parts, std::int64_t num_columns,
                                          Activation activation);
void gather_rows(Context& context, DType dtype, const std::byte* table, std::int64_t num_columns,
                 const std::int32_t* ids, std::int64_t num_ids, float* out);

// Of linear.h: rows of activations are taken, and multiplied.
void assign_rows(Context& context, DeviceObject& rows, const float* x, std::int64_t num_rows, std::int64_t num_columns,
                 std::int64_t stride, Activation activation);
void multiply_rows(Context& context, const Matrix& matrix, const DeviceObject& rows, const float* bias, float* y,
                   std::int64_t stride, Store store);

// The same with given kernels.
void assign_with(const LinearKernels& kernels, Context& context, const float* x, std::int64_t num_rows,
                 std::int64_t num_columns, std::int64_t stride, Activation activation, QuantisableRows& state);
void multiply_with(const LinearKernels& kernels, Context& context, const PackedMatrix& matrix,
                   const QuantisableRows& x, const float* bias, float* y, std::int64_t stride, Store store);

}  // namespace pocket::cpu
