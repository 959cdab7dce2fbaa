#include "models/llama.h"

#include <string>
#include <utility>
#include <vector>

#include "models/attention_mixer.h"
#include "models/families.h"
#include "models/feed_forward.h"
#include "models/pre_norm_layer.h"

namespace pocket {

std::unique_ptr<Model> load_llama_like(const LoadRequest& request, const LlamaTraits& traits) {
  const ModelConfig& config = request.config;
  WeightReader weights(request.context, request.source, config, request.options.activation, 0.0f,
                       "post_attention_layernorm");
  const bool interleaved = traits.permuted_gguf && weights.format() == FileFormat::kGguf;
  std::vector<std::unique_ptr<RotaryAngles>> angles;
  const RopeFrequencies plain = rope_frequencies(config.rope, config.head_dim, {});
  const std::vector<float> divisors = weights.rope_divisors(static_cast<std::int64_t>(plain.inverse.size()));
  angles.push_back(std::make_unique<RotaryAngles>(rope_frequencies(config.rope, config.head_dim, divisors)));
  const RotaryAngles& shared_angles = *angles[0];

  const auto make_layer = [&](std::int64_t index) {
    const std::string prefix = "model.layers." + std::to_string(index) + ".";
    const float eps = static_cast<float>(config.rms_norm_eps);
    const bool sliding = config.layers[static_cast<std::size_t>(index)] == LayerKind::kSlidingAttention;
    const AttentionOptions attention{.prefix = prefix + "self_attn.",
                                     .cache_layer = request.num_layers_before(index, false),
                                     .rotary_style = interleaved ? RotaryStyle::kInterleaved : RotaryStyle::kHalves,
                                     .head_norms = traits.head_norms,
                                     .output_gate = false,
                                     .window = sliding ? config.sliding_window : 0};
    return std::make_unique<PreNormLayer>(
        Norm{weights.norm(prefix + "input_layernorm.weight", config.hidden_size), config.hidden_size, eps},
        std::make_unique<AttentionMixer>(weights, config, attention, shared_angles),
        Norm{weights.norm(prefix + "post_attention_layernorm.weight", config.hidden_size), config.hidden_size, eps},
        std::make_unique<DenseFeedForward>(weights, config, prefix + "mlp.", config.intermediate_size));
  };
  return std::make_unique<Decoder>(request, weights, 1.0f, std::move(angles), make_layer);
}

std::unique_ptr<Model> load_llama(const LoadRequest& request) {
  return load_llama_like(request, {.head_norms = false, .permuted_gguf = true});
}

}  // namespace pocket
