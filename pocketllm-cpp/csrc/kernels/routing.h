// Which experts of a mixture see a row, and with what weight.
#pragma once

#include <cstdint>

#include "kernels/context.h"

namespace pocket {

struct RoutingShape {
  std::int64_t num_rows = 0;
  std::int32_t num_experts = 0;
  std::int32_t num_selected = 0;     // per row, 1 to num_experts
  std::int64_t stride = 0;           // floats between rows of logits
  bool renormalize = true;           // the selected weights are divided by their sum
};

// p = softmax(logits) over all experts; experts [num_rows, num_selected]: the largest logits, largest first, the lower
// index first among equals; weights [num_rows, num_selected]: their p, renormalised. A row's result depends on that row
// alone; NaN ranks last.
void route(Context& context, const RoutingShape& shape, const float* logits, std::int32_t* experts, float* weights);

// The same in double precision.
void route_reference(const RoutingShape& shape, const float* logits, std::int32_t* experts, double* weights);

}  // namespace pocket
