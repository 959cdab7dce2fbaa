#include "kernels/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/reference/linear.h"
#include "kernels/reference/memory.h"
#include "kernels/reference/operations.h"

namespace pocket::reference {
namespace {

void route(Context&, const RoutingShape& shape, const float* logits, std::int32_t* experts, float* weights) {
  const float* rows = reach_rows(logits, shape.num_rows, shape.num_experts, shape.stride);
  std::int32_t* selected = reach(experts, shape.num_rows * shape.num_selected);
  float* shares = reach(weights, shape.num_rows * shape.num_selected);
  std::vector<std::int32_t> order(static_cast<std::size_t>(shape.num_experts));
  for (std::int64_t row = 0; row < shape.num_rows; ++row) {
    const float* x = rows + row * shape.stride;
    const auto rank_of = [&](std::int32_t e) { return std::isnan(x[e]) ? -INFINITY : x[e]; };
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return rank_of(a) > rank_of(b); });
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
      selected[row * shape.num_selected + i] = expert;
      shares[row * shape.num_selected + i] =
          static_cast<float>(std::exp(x[expert] - largest) / (shape.renormalize ? selected_sum : sum));
    }
  }
}

// A pair of a row and an expert, in the order of places.
struct Pair {
  std::int64_t row = 0;
  std::int64_t index = 0;  // among the row's experts
  std::int32_t expert = 0;
};

struct SortedPairs final : DeviceObject {
  using DeviceObject::DeviceObject;

  std::int64_t num_rows = 0;
  std::int64_t num_selected = 0;
  std::vector<Pair> pairs;
};

const std::vector<Pair>& pairs_of(const Context& context, const ExpertOrder& order) {
  return own<const SortedPairs>(context, order.on_device(), "An order of experts").pairs;
}

void assign_order(Context& context, DeviceObject& object, const RoutingShape& shape, const std::int32_t* experts) {
  auto& order = own<SortedPairs>(context, object, "An order of experts");
  const std::int32_t* selected = reach(experts, shape.num_rows * shape.num_selected);
  order.num_rows = shape.num_rows;
  order.num_selected = shape.num_selected;
  order.pairs.clear();
  for (std::int64_t i = 0; i < shape.num_rows * shape.num_selected; ++i) {
    order.pairs.push_back({i / shape.num_selected, i % shape.num_selected, selected[i]});
  }
  std::stable_sort(order.pairs.begin(), order.pairs.end(),
                   [](const Pair& a, const Pair& b) { return a.expert < b.expert; });
}

// y's row at each place = the row of x that `row_of` names times the expert's matrix.
template <class RowOf>
void multiply_pairs(Context& context, ExpertMatrices matrices, const std::vector<Pair>& pairs, std::int64_t num_x_rows,
                    const float* x, float* y, RowOf&& row_of) {
  const std::int64_t num_columns = matrices[0]->num_columns();
  const std::int64_t num_outputs = matrices[0]->num_rows();
  const float* from = reach(x, num_x_rows * num_columns);
  float* to = reach(y, std::ssize(pairs) * num_outputs);
  for (std::int64_t place = 0; place < std::ssize(pairs); ++place) {
    const Pair& pair = pairs[static_cast<std::size_t>(place)];
    const auto& matrix =
        own<const FloatMatrix>(context, *matrices[static_cast<std::size_t>(pair.expert)], "A weight matrix");
    const float* weights = reach(matrix.weights(), num_outputs * num_columns);
    const float* row = from + row_of(pair, place) * num_columns;
    for (std::int64_t index = 0; index < num_outputs; ++index) {
      to[place * num_outputs + index] = dot(row, weights + index * num_columns, num_columns);
    }
  }
}

void multiply_selected(Context& context, ExpertMatrices matrices, const ExpertOrder& order, const float* x,
                       const ActivationRows&, Activation, float* y) {
  const auto& sorted = own<const SortedPairs>(context, order.on_device(), "An order of experts");
  multiply_pairs(context, matrices, sorted.pairs, sorted.num_rows, x, y,
                 [](const Pair& pair, std::int64_t) { return pair.row; });
}

void multiply_places(Context& context, ExpertMatrices matrices, const ExpertOrder& order, const float* x, Activation,
                     float* y) {
  const std::vector<Pair>& pairs = pairs_of(context, order);
  multiply_pairs(context, matrices, pairs, std::ssize(pairs), x, y,
                 [](const Pair&, std::int64_t place) { return place; });
}

void combine_experts(Context& context, const ExpertOrder& order, const float* weights, float* outputs,
                     const SharedExpert& shared, std::int64_t width, float* y, Store store) {
  const auto& sorted = own<const SortedPairs>(context, order.on_device(), "An order of experts");
  const float* from = reach(outputs, std::ssize(sorted.pairs) * width);
  const float* shares = reach(weights, std::ssize(sorted.pairs));
  const float* beside = reach(shared.output, sorted.num_rows * width);
  const float* gates = reach_rows(shared.gate, sorted.num_rows, 1, shared.gate_stride);
  float* out = reach(y, sorted.num_rows * width);
  std::vector<std::int64_t> place_of(sorted.pairs.size());
  for (std::size_t place = 0; place < sorted.pairs.size(); ++place) {
    const Pair& pair = sorted.pairs[place];
    place_of[static_cast<std::size_t>(pair.row * sorted.num_selected + pair.index)] = static_cast<std::int64_t>(place);
  }
  for (std::int64_t row = 0; row < sorted.num_rows; ++row) {
    const double gate = 1.0 / (1.0 + std::exp(-double{gates[row * shared.gate_stride]}));
    for (std::int64_t column = 0; column < width; ++column) {
      double sum = 0.0;
      for (std::int64_t index = 0; index < sorted.num_selected; ++index) {
        const std::int64_t at = row * sorted.num_selected + index;
        sum += double{shares[at]} * double{from[place_of[static_cast<std::size_t>(at)] * width + column]};
      }
      const auto value = static_cast<float>(sum + gate * double{beside[row * width + column]});
      float& to = out[row * width + column];
      to = store == Store::kAdd ? to + value : value;
    }
  }
}

}  // namespace

void add_routing(Operations& table) noexcept {
  table.route = route;
  table.make_expert_order = [](Context& context) -> std::unique_ptr<DeviceObject> {
    return std::make_unique<SortedPairs>(context.device);
  };
  table.assign_expert_order = assign_order;
  table.multiply_selected = multiply_selected;
  table.multiply_places = multiply_places;
  table.combine_experts = combine_experts;
}

}  // namespace pocket::reference
