#include "models/feed_forward.h"

namespace pocket {

DenseFeedForward::DenseFeedForward(WeightReader& weights, const ModelConfig& config, const std::string& prefix,
                                   std::int64_t intermediate_size)
    : activation_(config.activation) {
  const std::string gate = prefix + "gate_proj", up = prefix + "up_proj", down = prefix + "down_proj";
  gate_up_ = weights.matrix({{.name = gate + ".weight", .num_rows = intermediate_size},
                             {.name = up + ".weight", .num_rows = intermediate_size}},
                            config.hidden_size);
  down_ = weights.matrix({{.name = down + ".weight", .num_rows = config.hidden_size}}, intermediate_size);
  if (config.mlp_bias) {
    const WeightSegment segments[] = {{gate + ".bias", intermediate_size}, {up + ".bias", intermediate_size}};
    gate_up_bias_ = weights.vector(segments);
    down_bias_ = weights.vector(down + ".bias", config.hidden_size);
  }
}

void DenseFeedForward::run(LayerCall& call, std::int64_t num_rows, const float*, const ActivationRows& rows, float* y,
                           Store store) {
  const std::int64_t inner = down_->num_columns();
  float* gate = call.room(call.work.gate_up, num_rows * 2 * inner);
  float* activated = call.room(call.work.activated, num_rows * inner);
  multiply(call.context, *gate_up_, rows, gate_up_bias_.as<float>(), gate, 2 * inner, Store::kAssign);
  gated(call.context, activation_, num_rows, inner, gate, gate + inner, 2 * inner, activated, inner);
  call.work.activated_rows.assign(call.context, activated, num_rows, inner, inner, call.activation);
  multiply(call.context, *down_, call.work.activated_rows, down_bias_.as<float>(), y, down_->num_rows(), store);
}

}  // namespace pocket
