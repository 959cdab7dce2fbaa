#include "models/attention_mixer.h"

#include <vector>

namespace pocket {

AttentionMixer::AttentionMixer(WeightReader& weights, const ModelConfig& config, const AttentionOptions& options,
                               const RotaryAngles& angles)
    : angles_(angles),
      rotary_style_(options.rotary_style),
      cache_layer_(options.cache_layer),
      num_heads_(static_cast<std::int32_t>(config.num_heads)),
      num_kv_heads_(static_cast<std::int32_t>(config.num_kv_heads)),
      head_dim_(static_cast<std::int32_t>(config.head_dim)),
      output_gate_(options.output_gate),
      attention_{.num_heads = num_heads_,
                 .scale = static_cast<float>(config.attention_scale),
                 .window = static_cast<std::int32_t>(options.window)} {
  const std::int64_t query_rows = config.num_heads * config.head_dim;
  const std::int64_t key_rows = config.num_kv_heads * config.head_dim;
  const std::string q = options.prefix + "q_proj", k = options.prefix + "k_proj", v = options.prefix + "v_proj";
  if (options.output_gate) {
    std::vector<std::int32_t> queries, gates;
    for (std::int32_t row = 0; row < query_rows; ++row) {
      const std::int32_t head = row / head_dim_;
      queries.push_back(row + head * head_dim_);
      gates.push_back(row + (head + 1) * head_dim_);
    }
    qkv_ = weights.matrix({{.name = q + ".weight", .num_rows = query_rows, .source_rows = queries,
                            .stored_rows = 2 * query_rows},
                           {.name = k + ".weight", .num_rows = key_rows},
                           {.name = v + ".weight", .num_rows = key_rows},
                           {.name = q + ".weight", .num_rows = query_rows, .source_rows = gates,
                            .stored_rows = 2 * query_rows}},
                          config.hidden_size);
  } else {
    qkv_ = weights.matrix({{.name = q + ".weight", .num_rows = query_rows},
                           {.name = k + ".weight", .num_rows = key_rows},
                           {.name = v + ".weight", .num_rows = key_rows}},
                          config.hidden_size);
  }
  if (config.qkv_bias) {
    const WeightSegment segments[] = {{q + ".bias", query_rows}, {k + ".bias", key_rows}, {v + ".bias", key_rows}};
    qkv_bias_ = weights.vector(segments);
  }
  output_ = weights.matrix({{.name = options.prefix + "o_proj.weight", .num_rows = config.hidden_size}}, query_rows);
  if (config.output_bias) output_bias_ = weights.vector(options.prefix + "o_proj.bias", config.hidden_size);
  if (options.head_norms) {
    const float eps = static_cast<float>(config.rms_norm_eps);
    query_norm_ = {weights.norm(options.prefix + "q_norm.weight", config.head_dim), config.head_dim, eps};
    key_norm_ = {weights.norm(options.prefix + "k_norm.weight", config.head_dim), config.head_dim, eps};
  }
}

void AttentionMixer::mix(LayerCall& call, const ActivationRows& x) {
  const std::int64_t query_size = std::int64_t{num_heads_} * head_dim_;
  const std::int64_t key_size = std::int64_t{num_kv_heads_} * head_dim_;
  // With a gate, the attended rows stand behind it in the same array: gated() wants both in rows of one stride.
  const std::int64_t stride = qkv_->num_rows() + (output_gate_ ? query_size : 0);
  float* q = call.room(call.work.projected, call.num_rows * stride);
  float* k = q + query_size;
  multiply(call.context, *qkv_, x, qkv_bias_.as<float>(), q, stride, Store::kAssign);
  if (query_norm_.size != 0) {
    query_norm_.apply_to_heads(call.context, call.num_rows, num_heads_, q, stride);
    key_norm_.apply_to_heads(call.context, call.num_rows, num_kv_heads_, k, stride);
  }
  // The keys lie behind the queries, so both turn in one call.
  rotate(call.context, angles_.table(), rotary_style_, call.sequences, num_heads_ + num_kv_heads_, head_dim_, q,
         stride);
  store_kv(call.context, call.caches.kv, cache_layer_, call.sequences, k, k + key_size, stride);
  if (call.num_kept == 0) return;
  call.keep_rows(q, qkv_->num_rows(), stride);
  float* mixed = call.room(call.work.mixed, call.num_kept * query_size);
  if (output_gate_) {
    float* gate = q + query_size + 2 * key_size;
    float* attended = gate + query_size;
    attend(call.context, call.caches.kv, cache_layer_, attention_, *call.kept_sequences, q, stride, attended, stride);
    gated(call.context, Gate::kSigmoid, call.num_kept, query_size, gate, attended, stride, mixed, query_size);
  } else {
    attend(call.context, call.caches.kv, cache_layer_, attention_, *call.kept_sequences, q, stride, mixed, query_size);
  }
}

void AttentionMixer::project(LayerCall& call, float* y, Store store) {
  ActivationRows& rows = call.work.mixed_rows;
  rows.assign(call.context, call.work.mixed.as<float>(), call.num_kept, output_->num_columns(), output_->num_columns(),
              call.activation);
  multiply(call.context, *output_, rows, output_bias_.as<float>(), y, output_->num_rows(), store);
}

}  // namespace pocket
