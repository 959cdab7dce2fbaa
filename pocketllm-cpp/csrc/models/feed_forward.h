// The gated feed-forward: down(act(gate x) * (up x)).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/elementwise.h"
#include "models/config.h"
#include "models/layer.h"
#include "models/weights.h"

namespace pocket {

class DenseFeedForward : public FeedForward {
 public:
  // `prefix`: of gate_proj, up_proj and down_proj, as in "model.layers.3.mlp.".
  DenseFeedForward(WeightReader& weights, const ModelConfig& config, const std::string& prefix,
                   std::int64_t intermediate_size);

  void run(LayerCall& call, std::int64_t num_rows, const float* x, const ActivationRows& rows, float* y,
           Store store) override;

 private:
  Gate activation_;
  std::unique_ptr<const Matrix> gate_up_;  // gate's rows, then up's
  std::unique_ptr<const Matrix> down_;
  DeviceBuffer gate_up_bias_, down_bias_;
};

}  // namespace pocket
