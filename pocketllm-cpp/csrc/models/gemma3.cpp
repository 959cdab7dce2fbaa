// Gemma 3 (text): most layers attend within a window and turn by a rule of their own, and every branch is normed before
// it joins the residual stream:
//   x += norm(attention(norm(x)));  x += norm(feed_forward(norm(x)))
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/half.h"
#include "kernels/elementwise.h"
#include "models/attention_mixer.h"
#include "models/families.h"
#include "models/feed_forward.h"

namespace pocket {
namespace {

struct Gemma3Norms {
  Norm input, post_attention, pre_feed_forward, post_feed_forward;
};

class Gemma3Layer : public Layer {
 public:
  Gemma3Layer(Gemma3Norms norms, std::unique_ptr<Mixer> mixer, std::unique_ptr<FeedForward> feed_forward)
      : norms_(std::move(norms)), mixer_(std::move(mixer)), feed_forward_(std::move(feed_forward)) {}

  void run(LayerCall& call, float* x) override {
    const std::int64_t size = norms_.input.size;
    Workspace& work = call.work;
    float* normed = call.room(work.normed, call.num_rows * size);
    norms_.input.apply(call.context, call.num_rows, x, normed);
    work.normed_rows.assign(call.context, normed, call.num_rows, size, size, call.activation);
    mixer_->mix(call, work.normed_rows);
    if (call.num_kept == 0) return;
    call.keep_rows(x, size, size);
    float* branch = call.room(work.branch, call.num_kept * size);
    mixer_->project(call, branch, Store::kAssign);
    norms_.post_attention.apply(call.context, call.num_kept, branch, branch);
    add_rows(call.context, call.num_kept * size, branch, x);
    norms_.pre_feed_forward.apply(call.context, call.num_kept, x, normed);
    work.normed_rows.assign(call.context, normed, call.num_kept, size, size, call.activation);
    feed_forward_->run(call, call.num_kept, normed, work.normed_rows, branch, Store::kAssign);
    norms_.post_feed_forward.apply(call.context, call.num_kept, branch, branch);
    add_rows(call.context, call.num_kept * size, branch, x);
  }

 private:
  Gemma3Norms norms_;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<FeedForward> feed_forward_;
};

// sqrt(hidden_size), rounded as the embedding's own type rounds it: so the model was trained. A GGUF's type says
// nothing about that.
float embedding_scale(const StoredTensor& table, FileFormat format, std::int64_t hidden_size) {
  const float scale = static_cast<float>(std::sqrt(static_cast<double>(hidden_size)));
  if (format == FileFormat::kGguf) return scale;
  if (table.dtype == DType::kF16) return half_to_float(float_to_half(scale));
  if (table.dtype != DType::kBF16) return scale;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(scale);
  return bfloat_to_float(static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16));
}

}  // namespace

std::unique_ptr<Model> load_gemma3(const LoadRequest& request) {
  const ModelConfig& config = request.config;
  WeightReader weights(request.context, request.source, config, request.options.activation, 1.0f,
                       "pre_feedforward_layernorm");
  std::vector<std::unique_ptr<RotaryAngles>> angles;
  angles.push_back(std::make_unique<RotaryAngles>(rope_frequencies(config.rope, config.head_dim, {})));
  angles.push_back(std::make_unique<RotaryAngles>(rope_frequencies(config.sliding_rope, config.head_dim, {})));
  const RotaryAngles& full_angles = *angles[0];
  const RotaryAngles& sliding_angles = *angles[1];

  const auto make_layer = [&](std::int64_t index) {
    const std::string prefix = "model.layers." + std::to_string(index) + ".";
    const auto norm = [&](const char* name) {
      return Norm{weights.norm(prefix + name + ".weight", config.hidden_size), config.hidden_size,
                  static_cast<float>(config.rms_norm_eps)};
    };
    const bool sliding = config.layers[static_cast<std::size_t>(index)] == LayerKind::kSlidingAttention;
    const AttentionOptions attention{.prefix = prefix + "self_attn.",
                                     .cache_layer = request.num_layers_before(index, false),
                                     .rotary_style = RotaryStyle::kHalves,
                                     .head_norms = true,
                                     .output_gate = false,
                                     .window = sliding ? config.sliding_window : 0};
    return std::make_unique<Gemma3Layer>(
        Gemma3Norms{norm("input_layernorm"), norm("post_attention_layernorm"), norm("pre_feedforward_layernorm"),
                    norm("post_feedforward_layernorm")},
        std::make_unique<AttentionMixer>(weights, config, attention, sliding ? sliding_angles : full_angles),
        std::make_unique<DenseFeedForward>(weights, config, prefix + "mlp.", config.intermediate_size));
  };
  const StoredTensor& table = weights.table("model.embed_tokens.weight", config.vocab_size, config.hidden_size);
  const float scale = embedding_scale(table, weights.format(), config.hidden_size);
  return std::make_unique<Decoder>(request, weights, scale, std::move(angles), make_layer);
}

}  // namespace pocket
