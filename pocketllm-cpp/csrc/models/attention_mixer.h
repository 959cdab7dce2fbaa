// Grouped-query attention with its projections: one product for q, k and v, norms of each head and an output gate where
// the family has them, rotary positions, the cache, and the output product.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "models/config.h"
#include "models/layer.h"
#include "models/rope.h"
#include "models/weights.h"

namespace pocket {

struct AttentionOptions {
  std::string prefix;         // of the weights, as in "model.layers.3.self_attn."
  std::int32_t cache_layer = 0;
  RotaryStyle rotary_style = RotaryStyle::kHalves;
  bool head_norms = false;    // q_norm and k_norm
  bool output_gate = false;   // q_proj has, per head, the query's rows and then the gate's
  std::int64_t window = 0;    // 0: all positions
};

class AttentionMixer : public Mixer {
 public:
  // `angles` must outlive the mixer, and cover the positions of every call.
  AttentionMixer(WeightReader& weights, const ModelConfig& config, const AttentionOptions& options,
                 const RotaryAngles& angles);

  void mix(LayerCall& call, const ActivationRows& x) override;
  void project(LayerCall& call, float* y, Store store) override;

 private:
  const RotaryAngles& angles_;
  RotaryStyle rotary_style_;
  std::int32_t cache_layer_;
  std::int32_t num_heads_, num_kv_heads_, head_dim_;
  bool output_gate_;
  AttentionShape attention_;
  std::unique_ptr<const Matrix> qkv_;  // rows q, k, v and, with an output gate, the gate
  std::unique_ptr<const Matrix> output_;
  DeviceBuffer qkv_bias_, output_bias_;
  Norm query_norm_, key_norm_;
};

}  // namespace pocket
