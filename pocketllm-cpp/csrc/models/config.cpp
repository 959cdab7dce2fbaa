#include "models/config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "models/config_reader.h"

namespace pocket {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 24;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxHeadDim = 1024;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;
constexpr std::int64_t kMaxExperts = 4096;

struct FamilyName {
  std::string_view model_type;
  Family family;
};
constexpr FamilyName kFamilies[] = {
    {"llama", Family::kLlama},          {"mistral", Family::kLlama},          {"qwen2", Family::kQwen2},
    {"qwen3", Family::kQwen3},          {"gemma3_text", Family::kGemma3},     {"gemma3", Family::kGemma3},
    {"qwen3_5_text", Family::kQwen3_5}, {"qwen3_5_moe_text", Family::kQwen3_5},
    {"qwen3_5", Family::kQwen3_5},      {"qwen3_5_moe", Family::kQwen3_5},
};

void refuse_value(const ConfigReader& config, std::string_view key, std::string_view supported) {
  const JsonValue* value = config.find(key);
  if (value != nullptr) refuse_config(key, ConfigReader::shown(*value), supported);
}

struct SizeDefaults {
  std::optional<std::int64_t> vocab_size, num_heads, num_kv_heads, head_dim;
};

void read_sizes(const ConfigReader& reader, const SizeDefaults& defaults, ModelConfig& config) {
  config.vocab_size = reader.size("vocab_size", kMaxSize, defaults.vocab_size);
  config.hidden_size = reader.size("hidden_size", kMaxSize);
  config.num_layers = reader.size("num_hidden_layers", kMaxLayers);
  config.num_heads = reader.size("num_attention_heads", kMaxHeads, defaults.num_heads);
  config.num_kv_heads =
      reader.size("num_key_value_heads", kMaxHeads, defaults.num_kv_heads ? defaults.num_kv_heads : config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    fail_config("num_key_value_heads", std::to_string(config.num_kv_heads),
                "does not divide num_attention_heads = " + std::to_string(config.num_heads));
  }
  std::optional<std::int64_t> head_dim = defaults.head_dim;
  if (!head_dim && config.hidden_size % config.num_heads == 0) head_dim = config.hidden_size / config.num_heads;
  if (!head_dim && !reader.has("head_dim")) {
    fail_config("hidden_size", std::to_string(config.hidden_size),
                "is not a multiple of num_attention_heads = " + std::to_string(config.num_heads));
  }
  config.head_dim = reader.size("head_dim", kMaxHeadDim, head_dim);
  if (config.head_dim % 2 != 0) fail_config("head_dim", std::to_string(config.head_dim), "is odd");
  config.max_positions = reader.size("max_position_embeddings", kMaxPositions, 2048);
  config.rms_norm_eps = reader.positive("rms_norm_eps", 1e-6);
  if (config.rms_norm_eps >= 1) fail_config("rms_norm_eps", std::to_string(config.rms_norm_eps), "is not small");
  config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
}

Gate read_activation(const ConfigReader& reader, std::string_view key, std::string_view fallback) {
  const std::string name = reader.text(key, fallback);
  if (name == "silu" || name == "swish") return Gate::kSilu;
  if (name == "gelu_pytorch_tanh") return Gate::kGeluTanh;
  refuse_config(key, "\"" + name + "\"", "silu and gelu_pytorch_tanh are");
}

// layer_types as written; empty when the checkpoint leaves it to the family's rule.
std::vector<LayerKind> read_layer_types(const ConfigReader& reader, std::int64_t num_layers) {
  std::vector<LayerKind> layers;
  const JsonValue* types = reader.find("layer_types");
  if (types == nullptr) return layers;
  if (!types->is_array() || static_cast<std::int64_t>(types->items().size()) != num_layers) {
    fail_config("layer_types", ConfigReader::shown(*types), "is not a list of num_hidden_layers names");
  }
  for (const JsonValue& type : types->items()) {
    const std::string shown = ConfigReader::shown(type);
    if (shown == "\"full_attention\"") {
      layers.push_back(LayerKind::kFullAttention);
    } else if (shown == "\"sliding_attention\"") {
      layers.push_back(LayerKind::kSlidingAttention);
    } else if (shown == "\"linear_attention\"") {
      layers.push_back(LayerKind::kLinearAttention);
    } else {
      refuse_config("layer_types", shown, "full_attention, sliding_attention and linear_attention are");
    }
  }
  return layers;
}

void refuse_layer_kind(const ModelConfig& config, LayerKind kind, std::string_view name) {
  if (std::find(config.layers.begin(), config.layers.end(), kind) != config.layers.end()) {
    refuse_config("layer_types", "\"" + std::string(name) + "\"", "not in this family");
  }
}

void read_llama_like(const ConfigReader& reader, Family family, ModelConfig& config) {
  SizeDefaults defaults;
  if (family == Family::kQwen3) defaults.head_dim = 128;
  read_sizes(reader, defaults, config);
  config.intermediate_size = reader.size("intermediate_size", kMaxSize);
  config.activation = read_activation(reader, "hidden_act", "silu");
  // Qwen2 has biases on q, k and v, and no key that says so.
  config.output_bias = family != Family::kQwen2 && reader.flag("attention_bias", false);
  config.qkv_bias = family == Family::kQwen2 || config.output_bias;
  config.mlp_bias = family == Family::kLlama && reader.flag("mlp_bias", false);
  config.rope = read_rope(reader, {.theta = 10000.0, .partial_factor = 1.0});
  config.layers.assign(static_cast<std::size_t>(config.num_layers), LayerKind::kFullAttention);
  // Only these read the key: llama has none, and Qwen switches it by a flag that is false in every release.
  const bool windowed = config.model_type == "mistral" ||
                        (family != Family::kLlama && reader.flag("use_sliding_window", false));
  if (!windowed || !reader.has("sliding_window")) return;
  config.sliding_window = reader.size("sliding_window", kMaxPositions);
  const std::int64_t first = family == Family::kLlama ? 0 : reader.size("max_window_layers", kMaxLayers, 28);
  for (std::int64_t index = first; index < config.num_layers; ++index) {
    config.layers[static_cast<std::size_t>(index)] = LayerKind::kSlidingAttention;
  }
  const std::vector<LayerKind> given = read_layer_types(reader, config.num_layers);
  if (!given.empty()) config.layers = given;
  refuse_layer_kind(config, LayerKind::kLinearAttention, "linear_attention");
}

void read_gemma3(const ConfigReader& reader, ModelConfig& config) {
  // A wrapper's text_config leaves out what equals the family's defaults.
  read_sizes(reader, {.vocab_size = 262208, .num_heads = 8, .num_kv_heads = 4, .head_dim = 256}, config);
  config.intermediate_size = reader.size("intermediate_size", kMaxSize, 9216);
  if (!reader.has("max_position_embeddings")) config.max_positions = 131072;
  config.activation = read_activation(reader, "hidden_activation", reader.text("hidden_act", "gelu_pytorch_tanh"));
  config.qkv_bias = config.output_bias = reader.flag("attention_bias", false);
  config.attention_scale = 1.0 / std::sqrt(reader.positive("query_pre_attn_scalar", 256.0));
  refuse_value(reader, "attn_logit_softcapping", "null is");
  refuse_value(reader, "final_logit_softcapping", "null is");
  if (reader.flag("use_bidirectional_attention", false)) {
    refuse_config("use_bidirectional_attention", "true", "false is");
  }
  config.sliding_window = reader.size("sliding_window", kMaxPositions, 4096);
  config.layers = read_layer_types(reader, config.num_layers);
  refuse_layer_kind(config, LayerKind::kLinearAttention, "linear_attention");
  if (config.layers.empty()) {
    const std::int64_t every =
        reader.size("sliding_window_pattern", kMaxLayers, reader.size("_sliding_window_pattern", kMaxLayers, 6));
    for (std::int64_t index = 0; index < config.num_layers; ++index) {
      config.layers.push_back((index + 1) % every != 0 ? LayerKind::kSlidingAttention : LayerKind::kFullAttention);
    }
  }
  config.rope = read_full_layers_rope(reader, {.theta = 1e6, .partial_factor = 1.0});
  config.sliding_rope = read_sliding_layers_rope(reader, {.theta = 10000.0, .partial_factor = 1.0});
}

DeltaNetShape read_delta_net(const ConfigReader& reader, const ModelConfig& config) {
  DeltaNetShape shape;
  shape.num_layers = static_cast<std::int32_t>(
      std::count(config.layers.begin(), config.layers.end(), LayerKind::kLinearAttention));
  shape.num_key_heads = static_cast<std::int32_t>(reader.size("linear_num_key_heads", kMaxHeads, 16));
  shape.num_value_heads = static_cast<std::int32_t>(reader.size("linear_num_value_heads", kMaxHeads, 32));
  shape.key_dim = static_cast<std::int32_t>(reader.size("linear_key_head_dim", kMaxHeadDim, 128));
  shape.value_dim = static_cast<std::int32_t>(reader.size("linear_value_head_dim", kMaxHeadDim, 128));
  shape.kernel_size = static_cast<std::int32_t>(reader.size("linear_conv_kernel_dim", 64, 4));
  if (shape.num_value_heads % shape.num_key_heads != 0) {
    fail_config("linear_num_value_heads", std::to_string(shape.num_value_heads),
                "is not a multiple of linear_num_key_heads = " + std::to_string(shape.num_key_heads));
  }
  if (shape.kernel_size < 2) fail_config("linear_conv_kernel_dim", "1", "leaves no convolution");
  return shape;
}

void read_qwen3_5(const ConfigReader& reader, ModelConfig& config) {
  read_sizes(reader, {.vocab_size = {}, .num_heads = {}, .num_kv_heads = {}, .head_dim = 256}, config);
  config.activation = read_activation(reader, "hidden_act", "silu");
  if (reader.flag("attention_bias", false)) refuse_config("attention_bias", "true", "false is");
  if (!reader.flag("attn_output_gate", true)) refuse_config("attn_output_gate", "false", "true is");
  config.layers = read_layer_types(reader, config.num_layers);
  refuse_layer_kind(config, LayerKind::kSlidingAttention, "sliding_attention");
  if (config.layers.empty()) {
    const std::int64_t every = reader.size("full_attention_interval", kMaxLayers, 4);
    for (std::int64_t index = 0; index < config.num_layers; ++index) {
      config.layers.push_back((index + 1) % every != 0 ? LayerKind::kLinearAttention : LayerKind::kFullAttention);
    }
  }
  config.delta_net = read_delta_net(reader, config);
  config.rope = read_rope(reader, {.theta = 10000.0, .partial_factor = 0.25});
  if (!config.model_type.starts_with("qwen3_5_moe")) {
    config.intermediate_size = reader.size("intermediate_size", kMaxSize);
    return;
  }
  ExpertSizes experts;
  experts.num_experts = reader.size("num_experts", kMaxExperts, 256);
  experts.num_selected = reader.size("num_experts_per_tok", kMaxExperts, 8);
  experts.intermediate_size = reader.size("moe_intermediate_size", kMaxSize, 512);
  experts.shared_intermediate_size = reader.size("shared_expert_intermediate_size", kMaxSize, 512);
  if (experts.num_selected > experts.num_experts) {
    fail_config("num_experts_per_tok", std::to_string(experts.num_selected),
                "is above num_experts = " + std::to_string(experts.num_experts));
  }
  config.experts = experts;
}

std::optional<ScaleTile> read_quantization(const JsonValue* value) {
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) fail_config("quantization_config", ConfigReader::shown(*value), "is not an object");
  const ConfigReader reader(*value);
  const std::string method = reader.text("quant_method", "");
  constexpr std::string_view kSupported = "fp8 in e4m3 with weight_block_size is";
  if (method != "fp8") refuse_config("quantization_config.quant_method", "\"" + method + "\"", kSupported);
  const std::string format = reader.text("fmt", "e4m3");
  if (format != "e4m3") refuse_config("quantization_config.fmt", "\"" + format + "\"", kSupported);
  const JsonValue* tile = reader.find("weight_block_size");
  if (tile == nullptr) refuse_config("quantization_config.weight_block_size", "null", kSupported);
  const auto is_side = [](const JsonValue& side) {
    return side.is_int() && side.as_int() > 0 && side.as_int() <= kMaxSize;
  };
  if (!tile->is_array() || tile->items().size() != 2 || !is_side(tile->items()[0]) || !is_side(tile->items()[1])) {
    fail_config("quantization_config.weight_block_size", ConfigReader::shown(*tile), "is not two positive integers");
  }
  return ScaleTile{tile->items()[0].as_int(), tile->items()[1].as_int()};
}

// A wrapper's keys that its text model may leave to it.
const JsonValue* find_either(const ConfigReader& inner, const ConfigReader& outer, std::string_view key) {
  const JsonValue* value = inner.find(key);
  return value != nullptr ? value : outer.find(key);
}

}  // namespace

std::optional<Family> family_of(std::string_view model_type) noexcept {
  for (const FamilyName& name : kFamilies) {
    if (name.model_type == model_type) return name.family;
  }
  return std::nullopt;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const FamilyName& name : kFamilies) names.emplace_back(name.model_type);
  return names;
}

ModelConfig read_model_config(std::string_view text) {
  const JsonValue document = parse_json(text, {}, "config.json");
  if (!document.is_object()) fail_config("the document", ConfigReader::shown(document), "is not an object");
  const ConfigReader outer(document);
  const JsonValue* inner = outer.find("text_config");
  if (inner != nullptr && !inner->is_object()) {
    fail_config("text_config", ConfigReader::shown(*inner), "is not an object");
  }
  const ConfigReader reader(inner != nullptr ? *inner : document);

  ModelConfig config;
  const std::string wrapper = outer.text("model_type", "");
  config.model_type = reader.text("model_type", inner != nullptr && !wrapper.empty() ? wrapper + "_text" : wrapper);
  const std::optional<Family> family = family_of(config.model_type);
  if (!family) {
    std::string known;
    for (const std::string& name : family_names()) known += (known.empty() ? "" : ", ") + name;
    refuse_config("model_type", "\"" + config.model_type + "\"", "families: " + known);
  }
  config.fp8_tile = read_quantization(find_either(reader, outer, "quantization_config"));
  switch (*family) {
    case Family::kLlama:
    case Family::kQwen2:
    case Family::kQwen3:
      read_llama_like(reader, *family, config);
      break;
    case Family::kGemma3:
      read_gemma3(reader, config);
      break;
    case Family::kQwen3_5:
      read_qwen3_5(reader, config);
      break;
  }
  const JsonValue* tied = find_either(reader, outer, "tie_word_embeddings");
  if (tied != nullptr && !tied->is_bool()) {
    fail_config("tie_word_embeddings", ConfigReader::shown(*tied), "is neither true nor false");
  }
  config.tied_head = tied != nullptr ? tied->as_bool() : *family == Family::kGemma3;
  return config;
}

}  // namespace pocket
