#include "kernels/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace pocket {

void route_reference(const RoutingShape& shape, const float* logits, std::int32_t* experts, double* weights) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(shape.num_experts));
  for (std::int64_t row = 0; row < shape.num_rows; ++row) {
    const float* x = logits + row * shape.stride;
    const auto rank_of = [&](std::int32_t e) { return std::isnan(x[e]) ? -INFINITY : x[e]; };
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return rank_of(a) > rank_of(b); });
    const double largest = rank_of(order[0]);
    double sum = 0.0;
    double selected_sum = 0.0;
    for (std::int32_t i = 0; i < shape.num_experts; ++i) {
      const double exponential = std::exp(x[order[static_cast<std::size_t>(i)]] - largest);
      sum += exponential;
      if (i < shape.num_selected) selected_sum += exponential;
    }
    for (std::int32_t i = 0; i < shape.num_selected; ++i) {
      const std::int32_t expert = order[static_cast<std::size_t>(i)];
      experts[row * shape.num_selected + i] = expert;
      weights[row * shape.num_selected + i] =
          std::exp(x[expert] - largest) / (shape.renormalize ? selected_sum : sum);
    }
  }
}

}  // namespace pocket
