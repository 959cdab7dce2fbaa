#include "models/layer.h"

#include "kernels/elementwise.h"

namespace pocket {

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
