// The router of a mixture of experts.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/routing.h"

namespace {

using pocket::Context;
using pocket::RoutingShape;
using pocket::ThreadPool;

struct Routed {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

Routed route(const RoutingShape& shape, const float* logits, int num_threads = 1) {
  ThreadPool threads(num_threads);
  Context context{threads};
  const auto size = static_cast<std::size_t>(shape.num_rows * shape.num_selected);
  Routed routed{std::vector<std::int32_t>(size), std::vector<float>(size)};
  pocket::route(context, shape, logits, routed.experts.data(), routed.weights.data());
  return routed;
}

}  // namespace

TEST(routing_equals_sorting) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  for (const bool renormalize : {true, false}) {
    for (const std::int32_t experts : {1, 2, 8, 256}) {
      for (const std::int32_t selected : {1, 2, 8}) {
        if (selected > experts) continue;
        const RoutingShape shape{50, experts, selected, experts + 3, renormalize};
        std::vector<float> logits(static_cast<std::size_t>(50 * shape.stride));
        // A coarse grid makes ties.
        for (float& logit : logits) logit = std::round(normal(random) * 2.0f) / 2.0f;
        const Routed routed = route(shape, logits.data());
        std::vector<std::int32_t> reference_experts(routed.experts.size());
        std::vector<double> reference_weights(routed.weights.size());
        pocket::route_reference(shape, logits.data(), reference_experts.data(), reference_weights.data());
        CHECK(reference_experts == routed.experts);
        for (std::int64_t row = 0; row < 50; ++row) {
          const float* x = logits.data() + row * shape.stride;
          std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return x[a] > x[b]; });
          double sum = 0.0, all = 0.0;
          for (std::int32_t i = 0; i < selected; ++i) sum += std::exp(double{x[order[static_cast<std::size_t>(i)]]});
          for (std::int32_t e = 0; e < experts; ++e) all += std::exp(double{x[e]});
          for (std::int32_t i = 0; i < selected; ++i) {
            const auto at = static_cast<std::size_t>(row * selected + i);
            CHECK_EQUAL(routed.experts[at], order[static_cast<std::size_t>(i)]);
            const double expected = std::exp(double{x[routed.experts[at]]}) / (renormalize ? sum : all);
            CHECK_CLOSE(routed.weights[at], expected, 1e-6);
            CHECK_CLOSE(reference_weights[at], expected, 1e-12);
          }
        }
      }
    }
  }
}

TEST(routing_rows_do_not_depend_on_the_batch) {
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  const RoutingShape shape{200, 64, 6, 64, true};
  std::vector<float> logits(200 * 64);
  for (float& logit : logits) logit = normal(random);
  const Routed all = route(shape, logits.data(), 2);
  RoutingShape one = shape;
  one.num_rows = 1;
  for (std::int64_t row = 0; row < 200; ++row) {
    const Routed alone = route(one, logits.data() + row * 64);
    CHECK(std::equal(alone.experts.begin(), alone.experts.end(), all.experts.begin() + row * 6));
    CHECK(std::memcmp(alone.weights.data(), all.weights.data() + row * 6, 6 * sizeof(float)) == 0);
  }
}

TEST(logits_that_are_not_numbers_rank_last) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits = {nan, 1.0f, nan, 2.0f};
  const RoutingShape shape{1, 4, 4, 4, true};
  const Routed routed = route(shape, logits.data());
  CHECK((routed.experts == std::vector<std::int32_t>{3, 1, 0, 2}));
}
