// What holds of a weight matrix on every device.
#include "kernels/linear.h"

#include <string>

#include "core/error.h"
#include "kernels/operations.h"

namespace pocket {
namespace {

bool is_weight_type(DType dtype) {
  return is_block_type(dtype) || dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 ||
         dtype == DType::kF8E4M3;
}

void check_part(const MatrixPart& part, std::int64_t num_columns) {
  const DTypeInfo& type = info(part.dtype);
  const std::string name(type.name);
  if (!is_weight_type(part.dtype)) {
    throw Error(ErrorKind::kUnsupportedFeature,
                "dtype " + name + " is not a type of weights; convert the tensor to one that is");
  }
  if (num_columns % type.block_elements != 0) {
    throw Error(ErrorKind::kUnsupportedFeature,
                "num_columns " + std::to_string(num_columns) + " is not a multiple of " +
                    std::to_string(type.block_elements) + ", the block of dtype " + name +
                    "; store this tensor in another type");
  }
  if (part.dtype == DType::kF8E4M3 && part.scales != nullptr && (part.scale_rows <= 0 || part.scale_columns <= 0)) {
    throw Error(ErrorKind::kConfiguration, "scale_rows " + std::to_string(part.scale_rows) + " and scale_columns " +
                                               std::to_string(part.scale_columns) +
                                               " of F8_E4M3 scales must be positive");
  }
}

}  // namespace

std::unique_ptr<const Matrix> pack_matrix(Context& context, std::span<const MatrixPart> parts, std::int64_t num_columns,
                                          Activation activation) {
  if (num_columns <= 0) {
    throw Error(ErrorKind::kConfiguration, "num_columns " + std::to_string(num_columns) + " must be positive");
  }
  for (const MatrixPart& part : parts) check_part(part, num_columns);
  return context.operations.pack_matrix(context, parts, num_columns, activation);
}

}  // namespace pocket
