// The products of a mixture's experts: each takes its rows together.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/linear/matrix.h"
#include "kernels/cpu/operations.h"
#include "kernels/routing.h"

namespace pocket::cpu {
namespace {

// The order, and memory of the products that go by it.
struct SortedSelections final : DeviceObject {
  explicit SortedSelections(const Device& device) : DeviceObject(device), gathered_rows(device) {}

  std::int64_t num_rows = 0;
  std::int64_t num_selected = 0;
  std::vector<std::int64_t> first_place;  // [num_experts + 1]
  std::vector<std::int64_t> place_of;     // [num_rows * num_selected]
  std::vector<std::int64_t> row_at;       // [num_rows * num_selected], by place

  mutable std::vector<std::int64_t> next_place;  // [num_experts]
  mutable Buffer gathered;
  mutable QuantisableRows gathered_rows;

  std::int64_t num_places(std::size_t expert) const noexcept { return first_place[expert + 1] - first_place[expert]; }
};

const SortedSelections& sorted(const Context& context, const ExpertOrder& order) {
  return own<const SortedSelections>(context, order.on_device(), "An order of experts");
}

void assign_order(Context& context, DeviceObject& object, const RoutingShape& shape, const std::int32_t* experts) {
  auto& order = own<SortedSelections>(context, object, "An order of experts");
  const std::int64_t num_places = shape.num_rows * shape.num_selected;
  order.num_rows = shape.num_rows;
  order.num_selected = shape.num_selected;
  order.first_place.assign(static_cast<std::size_t>(shape.num_experts) + 1, 0);
  for (std::int64_t i = 0; i < num_places; ++i) ++order.first_place[static_cast<std::size_t>(experts[i]) + 1];
  for (std::size_t expert = 1; expert < order.first_place.size(); ++expert) {
    order.first_place[expert] += order.first_place[expert - 1];
  }
  order.next_place.assign(order.first_place.begin(), order.first_place.end() - 1);
  order.place_of.resize(static_cast<std::size_t>(num_places));
  order.row_at.resize(static_cast<std::size_t>(num_places));
  for (std::int64_t i = 0; i < num_places; ++i) {
    const std::int64_t place = order.next_place[static_cast<std::size_t>(experts[i])]++;
    order.place_of[static_cast<std::size_t>(i)] = place;
    order.row_at[static_cast<std::size_t>(place)] = i / shape.num_selected;
  }
}

void multiply_selected(Context& context, ExpertMatrices matrices, const ExpertOrder& of_step, const float* x,
                       const ActivationRows& rows, Activation activation, float* y) {
  const SortedSelections& order = sorted(context, of_step);
  for (std::size_t expert = 0; expert < matrices.size(); ++expert) {
    const std::int64_t first = order.first_place[expert];
    const std::int64_t count = order.num_places(expert);
    if (count == 0) continue;
    const Matrix& matrix = *matrices[expert];
    float* to = y + first * matrix.num_rows();
    if (order.num_rows == 1) {
      // A single row is every expert's input as it is.
      multiply_rows(context, matrix, rows.on_device(), nullptr, to, matrix.num_rows(), Store::kAssign);
      continue;
    }
    const std::int64_t width = matrix.num_columns();
    float* gathered = order.gathered.reserve<float>(static_cast<std::size_t>(order.num_rows * width));
    for (std::int64_t place = 0; place < count; ++place) {
      const float* row = x + order.row_at[static_cast<std::size_t>(first + place)] * width;
      std::memcpy(gathered + place * width, row, static_cast<std::size_t>(width) * sizeof(float));
    }
    assign_rows(context, order.gathered_rows, gathered, count, width, width, activation);
    multiply_rows(context, matrix, order.gathered_rows, nullptr, to, matrix.num_rows(), Store::kAssign);
  }
}

void multiply_places(Context& context, ExpertMatrices matrices, const ExpertOrder& of_step, const float* x,
                     Activation activation, float* y) {
  const SortedSelections& order = sorted(context, of_step);
  for (std::size_t expert = 0; expert < matrices.size(); ++expert) {
    const std::int64_t first = order.first_place[expert];
    const std::int64_t count = order.num_places(expert);
    if (count == 0) continue;
    const Matrix& matrix = *matrices[expert];
    const std::int64_t width = matrix.num_columns();
    assign_rows(context, order.gathered_rows, x + first * width, count, width, width, activation);
    multiply_rows(context, matrix, order.gathered_rows, nullptr, y + first * matrix.num_rows(), matrix.num_rows(),
                  Store::kAssign);
  }
}

void combine_experts(Context& context, const ExpertOrder& of_step, const float* weights, float* outputs,
                     const SharedExpert& shared, std::int64_t width, float* y, Store store) {
  const SortedSelections& order = sorted(context, of_step);
  context.threads.run(order.num_rows, [&](std::int64_t row, int) {
    const std::size_t first = static_cast<std::size_t>(row * order.num_selected);
    const auto output_of = [&](std::int64_t index) {
      return outputs + order.place_of[first + static_cast<std::size_t>(index)] * width;
    };
    // The first expert's own output row takes the sum, which is complete before it joins what y holds.
    float* sum = output_of(0);
    for (std::int64_t column = 0; column < width; ++column) sum[column] *= weights[first];
    for (std::int64_t index = 1; index < order.num_selected; ++index) {
      const float weight = weights[first + static_cast<std::size_t>(index)];
      const float* other = output_of(index);
      for (std::int64_t column = 0; column < width; ++column) sum[column] += weight * other[column];
    }
    const float* beside = shared.output + row * width;
    const float gate = 1.0f / (1.0f + std::exp(-shared.gate[row * shared.gate_stride]));
    float* out = y + row * width;
    for (std::int64_t column = 0; column < width; ++column) {
      const float value = sum[column] + gate * beside[column];
      out[column] = store == Store::kAdd ? out[column] + value : value;
    }
  });
}

}  // namespace

void add_experts(Operations& table) noexcept {
  table.make_expert_order = [](Context& context) -> std::unique_ptr<DeviceObject> {
    return std::make_unique<SortedSelections>(context.device);
  };
  table.assign_expert_order = assign_order;
  table.multiply_selected = multiply_selected;
  table.multiply_places = multiply_places;
  table.combine_experts = combine_experts;
}

}  // namespace pocket::cpu
