// Mixtures of experts on every device: the router, the experts' products and their sum.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "device_tensor.h"

namespace {

using bench::DeviceBench;
using pocket::Activation;
using pocket::RoutingShape;

struct Routed {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

Routed route(DeviceBench& device, const RoutingShape& shape, const std::vector<float>& logits) {
  const auto size = static_cast<std::size_t>(shape.num_rows * shape.num_selected);
  auto x = device.input(logits);
  auto experts = device.output(std::vector<std::int32_t>(size));
  auto weights = device.output(std::vector<float>(size));
  pocket::route(device.context(), shape, x, experts, weights);
  CHECK(x.unchanged());
  return {experts.values(), weights.values()};
}

std::vector<float> random_floats(std::size_t count, unsigned seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> all(count);
  for (float& one : all) one = normal(random);
  return all;
}

// Experts of small float matrices, and a shared one's output; what run() gives is a step's sum.
struct Mixture {
  static constexpr std::int64_t kRows = 23, kColumns = 20, kInner = 12, kExperts = 7, kSelected = 3, kStride = 9;

  std::vector<std::vector<float>> up, down;
  std::vector<float> x = random_floats(kRows * kColumns, 1), logits = random_floats(kRows * kStride, 2, 2.0f);
  std::vector<float> shared = random_floats(kRows * kColumns, 3), before = random_floats(kRows * kColumns, 4);

  Mixture() {
    for (unsigned expert = 0; expert < kExperts; ++expert) {
      up.push_back(random_floats(kInner * kColumns, 10 + expert, 0.3f));
      down.push_back(random_floats(kColumns * kInner, 30 + expert, 0.3f));
    }
  }

  static std::unique_ptr<const pocket::Matrix> matrix(DeviceBench& device, const std::vector<float>& values,
                                                      std::int64_t num_rows, std::int64_t num_columns) {
    pocket::MatrixPart part;
    part.data = reinterpret_cast<const std::byte*>(values.data());
    part.num_rows = num_rows;
    return pocket::pack_matrix(device.context(), {&part, 1}, num_columns, Activation::kFloat32);
  }

  // Rows [first, first + count) of the step.
  std::vector<float> run(DeviceBench& device, std::int64_t first, std::int64_t count, pocket::Store store) const {
    pocket::Context& context = device.context();
    std::vector<std::unique_ptr<const pocket::Matrix>> ups, downs;
    for (std::size_t expert = 0; expert < kExperts; ++expert) {
      ups.push_back(matrix(device, up[expert], kInner, kColumns));
      downs.push_back(matrix(device, down[expert], kColumns, kInner));
    }
    const auto rows_of = [&](const std::vector<float>& all, std::int64_t width) {
      return std::vector<float>(all.begin() + first * width, all.begin() + (first + count) * width);
    };
    auto rows = device.input(rows_of(x, kColumns));
    auto scores = device.input(rows_of(logits, kStride));
    auto beside = device.input(rows_of(shared, kColumns));
    auto y = device.output(rows_of(before, kColumns));
    const auto num_places = static_cast<std::size_t>(count * kSelected);
    auto experts = device.output(std::vector<std::int32_t>(num_places));
    auto weights = device.output(std::vector<float>(num_places));
    auto inner = device.output(std::vector<float>(num_places * kInner, 7.0f));
    auto outputs = device.output(std::vector<float>(num_places * kColumns, 7.0f));
    const RoutingShape shape{count, kExperts, kSelected, kStride, true};
    pocket::route(context, shape, scores, experts, weights);
    pocket::ExpertOrder order;
    order.assign(context, shape, experts);
    pocket::ActivationRows activations;
    activations.assign(context, rows, count, kColumns, kColumns, Activation::kFloat32);
    pocket::multiply_selected(context, ups, order, rows, activations, Activation::kFloat32, inner);
    pocket::multiply_places(context, downs, order, inner, Activation::kFloat32, outputs);
    pocket::combine_experts(context, order, weights, outputs, {beside, scores + kExperts, kStride}, kColumns, y, store);
    CHECK(rows.unchanged() && scores.unchanged() && beside.unchanged());
    inner.values();
    outputs.values();
    return y.values();
  }

  // A row's sum in double precision, from the router's own choice.
  std::vector<double> expected(std::int64_t row) const {
    const float* scores = logits.data() + row * kStride;
    std::vector<std::int32_t> order(kExperts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return scores[a] > scores[b]; });
    double total = 0.0;
    for (std::size_t i = 0; i < kSelected; ++i) total += std::exp(double{scores[order[i]]});
    std::vector<double> sum(kColumns, 0.0);
    for (std::size_t i = 0; i < kSelected; ++i) {
      const auto expert = static_cast<std::size_t>(order[i]);
      std::vector<double> hidden(kInner, 0.0);
      for (std::size_t h = 0; h < kInner; ++h) {
        for (std::size_t c = 0; c < kColumns; ++c) {
          hidden[h] += double{up[expert][h * kColumns + c]} * double{x[static_cast<std::size_t>(row) * kColumns + c]};
        }
      }
      for (std::size_t c = 0; c < kColumns; ++c) {
        double output = 0.0;
        for (std::size_t h = 0; h < kInner; ++h) output += double{down[expert][c * kInner + h]} * hidden[h];
        sum[c] += std::exp(double{scores[order[i]]}) / total * output;
      }
    }
    const double gate = 1.0 / (1.0 + std::exp(-double{scores[kExperts]}));
    const float* beside = shared.data() + row * kColumns;
    for (std::size_t c = 0; c < kColumns; ++c) sum[c] += gate * double{beside[c]};
    return sum;
  }
};

}  // namespace

TEST(routing_chooses_what_sorting_would) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name);
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
          const Routed routed = route(device, shape, logits);
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
            }
          }
        }
      }
    }
  });
}

TEST(routing_rows_do_not_depend_on_the_batch) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name, 2);
    const RoutingShape shape{200, 64, 6, 64, true};
    const std::vector<float> logits = random_floats(200 * 64, 12);
    const Routed all = route(device, shape, logits);
    RoutingShape one = shape;
    one.num_rows = 1;
    for (std::int64_t row = 0; row < 200; ++row) {
      const Routed alone = route(device, one, {logits.begin() + row * 64, logits.begin() + (row + 1) * 64});
      CHECK(std::equal(alone.experts.begin(), alone.experts.end(), all.experts.begin() + row * 6));
      CHECK(std::memcmp(alone.weights.data(), all.weights.data() + row * 6, 6 * sizeof(float)) == 0);
    }
  });
}

TEST(logits_that_are_not_numbers_rank_last) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const Routed routed = route(device, {1, 4, 4, 4, true}, {nan, 1.0f, nan, 2.0f});
    CHECK((routed.experts == std::vector<std::int32_t>{3, 1, 0, 2}));
  });
}

TEST(a_mixture_is_the_weighted_sum_of_its_experts) {
  const Mixture mixture;
  bench::on_each_device([&](const std::string& name) {
    DeviceBench device(name, 2);
    const std::vector<float> assigned = mixture.run(device, 0, Mixture::kRows, pocket::Store::kAssign);
    const std::vector<float> added = mixture.run(device, 0, Mixture::kRows, pocket::Store::kAdd);
    for (std::int64_t row = 0; row < Mixture::kRows; ++row) {
      const std::vector<double> expected = mixture.expected(row);
      for (std::size_t c = 0; c < Mixture::kColumns; ++c) {
        const auto at = static_cast<std::size_t>(row) * Mixture::kColumns + c;
        CHECK_CLOSE(assigned[at], expected[c], 1e-5);
        CHECK_EQUAL(added[at], mixture.before[at] + assigned[at]);
      }
    }
  });
}

TEST(a_mixtures_rows_do_not_depend_on_the_batch) {
  const Mixture mixture;
  bench::on_each_device([&](const std::string& name) {
    DeviceBench device(name, 2);
    const std::vector<float> all = mixture.run(device, 0, Mixture::kRows, pocket::Store::kAdd);
    for (const std::int64_t count : {1, 4}) {
      for (std::int64_t first = 0; first + count <= Mixture::kRows; first += 6) {
        const std::vector<float> some = mixture.run(device, first, count, pocket::Store::kAdd);
        CHECK(std::memcmp(some.data(), all.data() + first * Mixture::kColumns, some.size() * sizeof(float)) == 0);
      }
    }
  });
}
