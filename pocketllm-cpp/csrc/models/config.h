// A model's sizes and rules, from config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/delta_net.h"
#include "kernels/elementwise.h"
#include "models/rope.h"

namespace pocket {

enum class LayerKind { kFullAttention, kSlidingAttention, kLinearAttention };

struct ExpertSizes {
  std::int64_t num_experts = 0;
  std::int64_t num_selected = 0;  // per token
  std::int64_t intermediate_size = 0;
  std::int64_t shared_intermediate_size = 0;
};

// Tile of an FP8 weight that shares one scale.
struct ScaleTile {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

struct ModelConfig {
  std::string model_type;  // of the text model
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  // 0 where every layer has experts
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_positions = 0;
  double rms_norm_eps = 1e-6;
  bool tied_head = false;  // a checkpoint without a head is tied as well
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  std::vector<LayerKind> layers;  // [num_layers]
  std::int64_t sliding_window = 0;
  double attention_scale = 1.0;
  Gate activation = Gate::kSilu;
  RopeSettings rope;
  RopeSettings sliding_rope;              // Gemma 3: of the sliding layers
  std::optional<DeltaNetShape> delta_net;  // num_layers: the linear layers; tiled_value_heads is the loader's to set
  std::optional<ExpertSizes> experts;
  std::optional<ScaleTile> fp8_tile;
};

// Families this build has, by the model_type of their text models and of the wrappers around those.
enum class Family { kLlama, kQwen2, kQwen3, kGemma3, kQwen3_5 };
std::optional<Family> family_of(std::string_view model_type) noexcept;
std::vector<std::string> family_names();

// Reads the text of a config.json object; a multimodal wrapper's text_config is the model.
// Throws Error(kCheckpoint, param = key) for values that are missing or impossible, Error(kUnsupportedFeature, param =
// key) for families and rules this build does not have.
ModelConfig read_model_config(std::string_view text);

}  // namespace pocket
