#include "models/delta_net_mixer.h"

#include <cmath>

#include "core/error.h"

namespace pocket {

DeltaNetMixer::DeltaNetMixer(WeightReader& weights, const ModelConfig& config, const std::string& prefix,
                             std::int32_t state_layer)
    : shape_(*config.delta_net),
      state_layer_(state_layer),
      conv_channels_(shape_.conv_channels()),
      value_size_(std::int64_t{shape_.num_value_heads} * shape_.value_dim),
      num_value_heads_(shape_.num_value_heads),
      eps_(static_cast<float>(config.rms_norm_eps)) {
  input_ = weights.matrix({{.name = prefix + "in_proj_qkv.weight", .num_rows = conv_channels_},
                           {.name = prefix + "in_proj_z.weight", .num_rows = value_size_},
                           {.name = prefix + "in_proj_b.weight", .num_rows = num_value_heads_},
                           {.name = prefix + "in_proj_a.weight", .num_rows = num_value_heads_}},
                          config.hidden_size);
  output_ = weights.matrix({{.name = prefix + "out_proj.weight", .num_rows = config.hidden_size}}, value_size_);
  conv_ = weights.table_of_floats(prefix + "conv1d.weight", conv_channels_, shape_.kernel_size);
  // GGUF stores -exp(A_log) itself.
  const bool is_decay = weights.format() == FileFormat::kGguf;
  decay_ = weights.vector(prefix + "A_log", num_value_heads_, [=](float a) { return is_decay ? a : -std::exp(a); });
  dt_bias_ = weights.vector(prefix + "dt_bias", num_value_heads_);
  norm_ = weights.vector(prefix + "norm.weight", shape_.value_dim);  // not zero-centred, in either format
}

void DeltaNetMixer::mix(LayerCall& call, const ActivationRows& x) {
  if (call.caches.states == nullptr) {
    throw Error(ErrorKind::kEngine, "This model has recurrent layers, and the step came without their states.");
  }
  const std::int64_t stride = input_->num_rows();
  float* projected = call.room(call.work.projected, call.num_rows * stride);
  multiply(call.context, *input_, x, nullptr, projected, stride, Store::kAssign);
  float* mixed = call.room(call.work.mixed, call.num_rows * value_size_);
  const float* z = projected + conv_channels_;
  const float* beta = z + value_size_;
  DeltaNetStates states(call.context, *call.caches.states, shape_);
  delta_net(call.context, states, state_layer_,
            {.conv = conv_.as<float>(), .decay = decay_.as<float>(), .dt_bias = dt_bias_.as<float>(),
             .norm = norm_.as<float>(), .eps = eps_},
            call.sequences,
            {.mixed = projected, .z = z, .alpha = beta + num_value_heads_, .beta = beta, .mixed_stride = stride,
             .z_stride = stride, .alpha_stride = stride, .beta_stride = stride},
            mixed, value_size_);
  call.keep_rows(mixed, value_size_, value_size_);
}

void DeltaNetMixer::project(LayerCall& call, float* y, Store store) {
  ActivationRows& rows = call.work.mixed_rows;
  rows.assign(call.context, call.work.mixed.as<float>(), call.num_kept, value_size_, value_size_, call.activation);
  multiply(call.context, *output_, rows, nullptr, y, output_->num_rows(), store);
}

}  // namespace pocket
