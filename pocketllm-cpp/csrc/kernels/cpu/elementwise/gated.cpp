#include "kernels/cpu/elementwise/kernels.h"
#include "kernels/cpu/simd/dispatch.h"

namespace pocket {

void gated(Context& context, Gate gate_kind, std::int64_t num_rows, std::int64_t num_columns, const float* gate,
           const float* up, std::int64_t stride, float* y, std::int64_t y_stride) {
  const ElementwiseKernels& kernels = kernels_in_use<ElementwiseKernelsOf>();
  for_ranges(context, num_rows, num_columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      kernels.gated(gate_kind, gate + row * stride, up + row * stride, num_columns, y + row * y_stride);
    }
  });
}

void scale_rows(Context& context, std::int64_t num_elements, float factor, float* x) {
  const ElementwiseKernels& kernels = kernels_in_use<ElementwiseKernelsOf>();
  for_ranges(context, num_elements, 1, [&](std::int64_t begin, std::int64_t end) {
    kernels.scale(factor, end - begin, x + begin);
  });
}

void add_rows(Context& context, std::int64_t num_elements, const float* x, float* y) {
  const ElementwiseKernels& kernels = kernels_in_use<ElementwiseKernelsOf>();
  for_ranges(context, num_elements, 1, [&](std::int64_t begin, std::int64_t end) {
    kernels.add(x + begin, end - begin, y + begin);
  });
}

}  // namespace pocket
