// A Gated DeltaNet layer's mixer: one product for what enters the convolution, the gate, and both rates; the
// recurrence; the output product.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/delta_net.h"
#include "models/config.h"
#include "models/layer.h"
#include "models/weights.h"

namespace pocket {

class DeltaNetMixer : public Mixer {
 public:
  // `prefix`: as in "model.layers.3.linear_attn."; `state_layer`: its index among the model's recurrent layers.
  DeltaNetMixer(WeightReader& weights, const ModelConfig& config, const std::string& prefix, std::int32_t state_layer);

  void mix(LayerCall& call, const ActivationRows& x) override;
  void project(LayerCall& call, float* y, Store store) override;

 private:
  DeltaNetShape shape_;
  std::int32_t state_layer_;
  std::int64_t conv_channels_, value_size_, num_value_heads_;
  float eps_;
  std::unique_ptr<const Matrix> input_;  // rows: q, k, v; z; beta; alpha
  std::unique_ptr<const Matrix> output_;
  DeviceBuffer conv_, decay_, dt_bias_, norm_;
};

}  // namespace pocket
