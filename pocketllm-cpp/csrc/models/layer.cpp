#include "models/layer.h"

#include <cstring>

#include "kernels/elementwise.h"

namespace pocket {

void LayerCall::keep_rows(float* x, std::int64_t width, std::int64_t stride) const {
  if (!narrows()) return;
  // Kept rows ascend, so none is overwritten before it has moved.
  for (std::int64_t index = 0; index < num_kept; ++index) {
    const std::int64_t row = kept[static_cast<std::size_t>(index)];
    if (row == index) continue;
    std::memcpy(x + index * stride, x + row * stride, static_cast<std::size_t>(width) * sizeof(float));
  }
}

void Norm::apply(Context& context, std::int64_t num_rows, const float* x, float* y) const {
  rms_norm(context,
           {.num_rows = num_rows, .num_groups = 1, .num_columns = size, .x_stride = size, .y_stride = size, .eps = eps},
           x, weight.as<float>(), y);
}

void Norm::apply_to_heads(Context& context, std::int64_t num_rows, std::int64_t num_groups, float* x,
                          std::int64_t stride) const {
  rms_norm(context, {.num_rows = num_rows, .num_groups = num_groups, .num_columns = size, .x_stride = stride,
                     .y_stride = stride, .eps = eps},
           x, weight.as<float>(), x);
}

}  // namespace pocket
