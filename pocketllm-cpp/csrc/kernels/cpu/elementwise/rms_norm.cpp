#include "kernels/cpu/elementwise/kernels.h"
#include "kernels/cpu/simd/dispatch.h"

namespace pocket {

void rms_norm(Context& context, const NormShape& shape, const float* x, const float* weight, float* y) {
  const ElementwiseKernels& kernels = kernels_in_use<ElementwiseKernelsOf>();
  for_ranges(context, shape.num_rows, shape.num_groups * shape.num_columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t group = 0; group < shape.num_groups; ++group) {
        const std::int64_t offset = group * shape.num_columns;
        kernels.rms_norm(x + row * shape.x_stride + offset, weight, shape.eps, shape.num_columns,
                         y + row * shape.y_stride + offset);
      }
    }
  });
}

}  // namespace pocket
