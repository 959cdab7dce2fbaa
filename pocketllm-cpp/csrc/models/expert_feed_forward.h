// A mixture of experts with one shared expert:
//   y = sum over the chosen experts e of w_e expert_e(x), + sigmoid(gate x) shared(x)
// A row's sum runs over its experts in the router's order and then the shared expert, whatever rows share the step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/elementwise.h"
#include "kernels/routing.h"
#include "models/config.h"
#include "models/feed_forward.h"
#include "models/layer.h"
#include "models/weights.h"

namespace pocket {

class ExpertFeedForward : public FeedForward {
 public:
  // `prefix`: of gate, experts and shared_expert, as in "model.layers.3.mlp.".
  ExpertFeedForward(WeightReader& weights, const ModelConfig& config, const std::string& prefix);

  void run(LayerCall& call, std::int64_t num_rows, const float* x, const ActivationRows& rows, float* y,
           Store store) override;

 private:
  ExpertSizes sizes_;
  std::int64_t hidden_size_;
  Gate activation_;
  std::unique_ptr<const Matrix> router_;  // rows: one per expert, then the shared expert's gate
  std::vector<std::unique_ptr<const Matrix>> gate_up_, down_;  // [num_experts]
  DenseFeedForward shared_;

  // Scratch of a call.
  DeviceBuffer logits_, selected_, selected_weights_, outputs_, shared_output_;
  ExpertOrder order_;
};

}  // namespace pocket
