// Qwen3.5: Gated DeltaNet layers with a gated attention layer among every few, and either one feed-forward or a mixture
// of experts in each. Norms are zero-centred but for the one inside a DeltaNet layer.
#include <string>
#include <utility>
#include <vector>

#include "models/attention_mixer.h"
#include "models/delta_net_mixer.h"
#include "models/expert_feed_forward.h"
#include "models/families.h"
#include "models/feed_forward.h"
#include "models/pre_norm_layer.h"

namespace pocket {
namespace {

std::unique_ptr<Mixer> make_mixer(const LoadRequest& request, WeightReader& weights, const RotaryAngles& angles,
                                  std::int64_t index, const std::string& prefix) {
  const ModelConfig& config = request.config;
  if (config.layers[static_cast<std::size_t>(index)] == LayerKind::kLinearAttention) {
    return std::make_unique<DeltaNetMixer>(weights, config, prefix + "linear_attn.",
                                           request.num_layers_before(index, true));
  }
  const AttentionOptions attention{.prefix = prefix + "self_attn.",
                                   .cache_layer = request.num_layers_before(index, false),
                                   .rotary_style = RotaryStyle::kHalves,
                                   .head_norms = true,
                                   .output_gate = true,
                                   .window = 0};
  return std::make_unique<AttentionMixer>(weights, config, attention, angles);
}

std::unique_ptr<FeedForward> make_feed_forward(WeightReader& weights, const ModelConfig& config,
                                               const std::string& prefix) {
  if (config.experts) return std::make_unique<ExpertFeedForward>(weights, config, prefix + "mlp.");
  return std::make_unique<DenseFeedForward>(weights, config, prefix + "mlp.", config.intermediate_size);
}

}  // namespace

std::unique_ptr<Model> load_qwen3_5(const LoadRequest& original) {
  LoadRequest request = original;
  ModelConfig& config = request.config;
  WeightReader weights(request.context, request.source, config, request.options.activation, 1.0f, "");
  // GGUF files have the value heads of one key head apart from each other, in every tensor alike: the recurrence is
  // told, and nothing is moved.
  config.delta_net->tiled_value_heads = weights.format() == FileFormat::kGguf;
  config.delta_net->num_layers = request.num_layers_before(config.num_layers, true);
  std::vector<std::unique_ptr<RotaryAngles>> angles;
  angles.push_back(std::make_unique<RotaryAngles>(rope_frequencies(config.rope, config.head_dim, {})));
  const RotaryAngles& shared_angles = *angles[0];

  const auto make_layer = [&](std::int64_t index) {
    const std::string prefix = "model.layers." + std::to_string(index) + ".";
    const auto norm = [&](const char* name) {
      return Norm{weights.norm(prefix + name, config.hidden_size), config.hidden_size,
                  static_cast<float>(config.rms_norm_eps)};
    };
    return std::make_unique<PreNormLayer>(norm("input_layernorm.weight"),
                                          make_mixer(request, weights, shared_angles, index, prefix),
                                          norm("post_attention_layernorm.weight"),
                                          make_feed_forward(weights, config, prefix));
  };
  return std::make_unique<Decoder>(request, weights, 1.0f, std::move(angles), make_layer);
}

}  // namespace pocket
