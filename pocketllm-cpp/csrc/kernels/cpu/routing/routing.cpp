#include "kernels/routing.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/elementwise/kernels.h"
#include "kernels/cpu/operations.h"

namespace pocket::cpu {
namespace {

// One row. A NaN logit ranks last.
void route_row(const RoutingShape& shape, const float* logits, std::int32_t* experts, float* weights) {
  const auto rank_of = [&](std::int32_t e) { return std::isnan(logits[e]) ? -INFINITY : logits[e]; };
  float largest = rank_of(0);
  for (std::int32_t e = 1; e < shape.num_experts; ++e) largest = std::max(largest, rank_of(e));
  float sum = 0.0f;
  for (std::int32_t e = 0; e < shape.num_experts; ++e) sum += std::exp(logits[e] - largest);
  // Each expert is the best of those that come after the one before in the order (larger logit, then lower index).
  float selected_sum = 0.0f;
  for (std::int32_t i = 0; i < shape.num_selected; ++i) {
    std::int32_t best = -1;
    for (std::int32_t e = 0; e < shape.num_experts; ++e) {
      if (i > 0) {
        const std::int32_t last = experts[i - 1];
        const bool comes_after = rank_of(e) < rank_of(last) || (rank_of(e) == rank_of(last) && e > last);
        if (!comes_after) continue;
      }
      if (best < 0 || rank_of(e) > rank_of(best)) best = e;
    }
    experts[i] = best;
    weights[i] = std::exp(logits[best] - largest) / sum;
    selected_sum += weights[i];
  }
  if (!shape.renormalize) return;
  for (std::int32_t i = 0; i < shape.num_selected; ++i) weights[i] /= selected_sum;
}

void route(Context& context, const RoutingShape& shape, const float* logits, std::int32_t* experts, float* weights) {
  for_ranges(context, shape.num_rows, std::int64_t{shape.num_experts} * (shape.num_selected + 1),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t row = begin; row < end; ++row) {
                 route_row(shape, logits + row * shape.stride, experts + row * shape.num_selected,
                           weights + row * shape.num_selected);
               }
             });
}

}  // namespace

void add_routing(Operations& table) noexcept {
  table.route = route;
  add_experts(table);
}

}  // namespace pocket::cpu
