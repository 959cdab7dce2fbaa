// Mixtures of experts: which experts see a row, their products, and the sum of what they give.
//
// Contract: a row's result depends on that row alone, whatever rows share the step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/context.h"
#include "kernels/linear.h"

namespace pocket {

struct RoutingShape {
  std::int64_t num_rows = 0;
  std::int32_t num_experts = 0;
  std::int32_t num_selected = 0;     // per row, 1 to num_experts
  std::int64_t stride = 0;           // floats between rows of logits
  bool renormalize = true;           // the selected weights are divided by their sum
};

// p = softmax(logits) over all experts; experts [num_rows, num_selected]: the largest logits, largest first, the lower
// index first among equals; weights [num_rows, num_selected]: their p, renormalised. NaN ranks last.
void route(Context& context, const RoutingShape& shape, const float* logits, std::int32_t* experts, float* weights);

// Every (row, selected expert) pair of a step by expert, and by row within one. A pair's number in this order is its
// place: rows of arrays [num_rows * num_selected, ...] are in the order of places.
class ExpertOrder {
 public:
  // experts: [num_rows, num_selected] in device memory, as `route` gives them.
  void assign(Context& context, const RoutingShape& shape, const std::int32_t* experts);

  const DeviceObject& on_device() const noexcept { return *on_device_; }

 private:
  std::unique_ptr<DeviceObject> on_device_;
};

// The matrices of all experts, of one shape.
using ExpertMatrices = std::span<const std::unique_ptr<const Matrix>>;

// y [places, matrix rows] = at each place, the row of x [num_rows, columns] times the expert's matrix. `rows` are x's.
void multiply_selected(Context& context, ExpertMatrices matrices, const ExpertOrder& order, const float* x,
                       const ActivationRows& rows, Activation activation, float* y);

// y [places, matrix rows] = each row of x [places, columns] times its expert's matrix.
void multiply_places(Context& context, ExpertMatrices matrices, const ExpertOrder& order, const float* x,
                     Activation activation, float* y);

// What stands beside the experts: sigmoid(gate) * output, with one gate per row, gate_stride floats apart.
struct SharedExpert {
  const float* output = nullptr;  // [num_rows, width]
  const float* gate = nullptr;
  std::int64_t gate_stride = 0;
};

// y [num_rows, width] = or += the sum over the row's experts of weight * expert's output, and the shared expert's.
// Summed in the router's order, complete before it joins what y holds. outputs: [places, width]; used up.
void combine_experts(Context& context, const ExpertOrder& order, const float* weights, float* outputs,
                     const SharedExpert& shared, std::int64_t width, float* y, Store store);

}  // namespace pocket
