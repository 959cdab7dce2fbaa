// Configurations: what is read, what is refused, and the frequencies that rope rules ask for.
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "check.h"
#include "core/error.h"
#include "kernels/devices.h"
#include "models/config.h"
#include "models/rope.h"
#include "models/weight_names.h"

using namespace pocket;

namespace {

const std::string kLlama =
    R"("model_type": "llama", "vocab_size": 32, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
       "num_attention_heads": 4, "num_key_value_heads": 2)";

ModelConfig read(const std::string& members) { return read_model_config("{" + members + "}"); }

// Kind and parameter of the error that reading raises; "" when it raises none.
std::string refusal(const std::string& members) {
  try {
    read(members);
    return "";
  } catch (const Error& error) {
    const bool unsupported = error.kind() == ErrorKind::kUnsupportedFeature;
    return (unsupported ? "unsupported " : error.kind() == ErrorKind::kCheckpoint ? "checkpoint " : "other ") +
           error.param();
  }
}

std::string llama_with(const std::string& change) {
  // Later members replace earlier ones here, since JSON objects with repeated names are refused.
  const std::string key = change.substr(0, change.find(':'));
  std::string kept = kLlama;
  const std::size_t at = kept.find(key + ":");
  if (at != std::string::npos) {
    const std::size_t end = kept.find(',', at);
    kept = end == std::string::npos ? kept.substr(0, kept.rfind(',')) : kept.substr(0, at) + kept.substr(end + 1);
  }
  return kept + ", " + change;
}

const std::string kQwen35 =
    R"("vocab_size": 32, "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
       "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
       "head_dim": 32)";

}  // namespace

TEST(a_llama_configuration_gives_sizes_and_defaults) {
  const ModelConfig config = read(kLlama);
  CHECK_EQUAL(config.head_dim, 16);
  CHECK_EQUAL(config.max_positions, 2048);
  CHECK_CLOSE(config.attention_scale, 0.25, 1e-12);
  CHECK_EQUAL(config.rope.type, std::string("default"));
  CHECK_CLOSE(config.rope.theta, 10000.0, 0.0);
  CHECK(!config.qkv_bias && !config.output_bias && !config.mlp_bias && !config.tied_head);
  CHECK_EQUAL(config.layers.size(), 3u);
  CHECK(read(llama_with(R"("num_attention_heads": [4, 4, 4])")).num_heads == 4);
}

TEST(impossible_values_are_named) {
  CHECK_EQUAL(refusal(llama_with(R"("hidden_size": null)")), std::string("checkpoint hidden_size"));
  CHECK_EQUAL(refusal(llama_with(R"("hidden_size": 66)")), std::string("checkpoint hidden_size"));
  CHECK_EQUAL(refusal(llama_with(R"("num_attention_heads": 0)")), std::string("checkpoint num_attention_heads"));
  CHECK_EQUAL(refusal(llama_with(R"("num_hidden_layers": 5000)")), std::string("checkpoint num_hidden_layers"));
  CHECK_EQUAL(refusal(llama_with(R"("num_key_value_heads": 3)")), std::string("checkpoint num_key_value_heads"));
  CHECK_EQUAL(refusal(llama_with(R"("num_key_value_heads": [2, 1, 2])")),
              std::string("unsupported num_key_value_heads"));
  CHECK_EQUAL(refusal(llama_with(R"("head_dim": 15)")), std::string("checkpoint head_dim"));
  CHECK_EQUAL(refusal(llama_with(R"("rms_norm_eps": "x")")), std::string("checkpoint rms_norm_eps"));
  CHECK_EQUAL(refusal(llama_with(R"("rms_norm_eps": 2)")), std::string("checkpoint rms_norm_eps"));
  CHECK_EQUAL(refusal(llama_with(R"("vocab_size": true)")), std::string("checkpoint vocab_size"));
  CHECK_EQUAL(refusal(llama_with(R"("tie_word_embeddings": 1)")), std::string("checkpoint tie_word_embeddings"));
  CHECK_EQUAL(refusal(R"("model_type": 3)"), std::string("checkpoint model_type"));
  CHECK_THROWS(Error, read_model_config("[]"));
}

TEST(what_is_not_built_is_refused) {
  CHECK_EQUAL(refusal(R"("model_type": "mamba")"), std::string("unsupported model_type"));
  CHECK_EQUAL(refusal(llama_with(R"("hidden_act": "relu")")), std::string("unsupported hidden_act"));
  CHECK_EQUAL(refusal(llama_with(R"("rope_scaling": {"type": "dynamic", "factor": 2.0})")),
              std::string("unsupported rope_type"));
  CHECK_EQUAL(refusal(llama_with(R"("quantization_config": {"quant_method": "gptq"})")),
              std::string("unsupported quantization_config.quant_method"));
  CHECK_EQUAL(refusal(llama_with(R"("quantization_config": {"quant_method": "fp8"})")),
              std::string("unsupported quantization_config.weight_block_size"));
  CHECK_EQUAL(refusal(llama_with(R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 0]})")),
              std::string("checkpoint quantization_config.weight_block_size"));
  CHECK_EQUAL(read(llama_with(R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 64]})"))
                  .fp8_tile->columns,
              64);
  const std::string gemma = R"("model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 7)";
  CHECK_EQUAL(refusal(gemma), std::string());
  CHECK_EQUAL(refusal(gemma + R"(, "final_logit_softcapping": 30.0)"),
              std::string("unsupported final_logit_softcapping"));
  CHECK_EQUAL(refusal(gemma + R"(, "use_bidirectional_attention": true)"),
              std::string("unsupported use_bidirectional_attention"));
  const std::string qwen = R"("model_type": "qwen3_5_text", "intermediate_size": 96, )" + kQwen35;
  CHECK_EQUAL(refusal(qwen + R"(, "attn_output_gate": false)"), std::string("unsupported attn_output_gate"));
  CHECK_EQUAL(refusal(qwen + R"(, "attention_bias": true)"), std::string("unsupported attention_bias"));
}

TEST(layer_kinds_of_each_family) {
  const ModelConfig gemma = read(R"("model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 7)");
  CHECK(gemma.layers[4] == LayerKind::kSlidingAttention && gemma.layers[5] == LayerKind::kFullAttention);
  CHECK(gemma.tied_head);
  const ModelConfig given = read(R"("model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 2,
                                    "layer_types": ["full_attention", "sliding_attention"])");
  CHECK(given.layers[0] == LayerKind::kFullAttention && given.layers[1] == LayerKind::kSlidingAttention);
  const ModelConfig qwen = read(R"("model_type": "qwen3_5_text", "intermediate_size": 96, )" + kQwen35);
  CHECK(qwen.layers[2] == LayerKind::kLinearAttention && qwen.layers[3] == LayerKind::kFullAttention);
  CHECK_EQUAL(qwen.delta_net->num_layers, 6);
  CHECK_EQUAL(qwen.delta_net->conv_channels(), 128);
  CHECK_CLOSE(qwen.rope.partial_factor, 0.25, 0.0);
  const std::string windows = R"("model_type": "qwen2", "vocab_size": 32, "hidden_size": 64, "intermediate_size": 96,
      "num_hidden_layers": 3, "num_attention_heads": 4, "sliding_window": 8, "max_window_layers": 1)";
  CHECK(read(windows).layers[2] == LayerKind::kFullAttention);
  CHECK(read(windows + R"(, "use_sliding_window": true)").layers[2] == LayerKind::kSlidingAttention);
  CHECK(read(windows + R"(, "use_sliding_window": true)").layers[0] == LayerKind::kFullAttention);
  CHECK(read(windows).qkv_bias && !read(windows).output_bias);
}

TEST(a_wrapped_configuration_with_experts_is_read) {
  const ModelConfig config = read(R"("model_type": "qwen3_5_moe", "tie_word_embeddings": true, "text_config": {)" +
                                  kQwen35 +
                                  R"(, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                                     "shared_expert_intermediate_size": 16}, "vision_config": {})");
  CHECK_EQUAL(config.model_type, std::string("qwen3_5_moe_text"));
  CHECK(config.tied_head);
  CHECK_EQUAL(config.experts->num_experts, 8);
  CHECK_EQUAL(config.intermediate_size, 0);
  CHECK_EQUAL(refusal(R"("model_type": "qwen3_5_moe_text", "num_experts": 2, "num_experts_per_tok": 3, )" + kQwen35),
              std::string("checkpoint num_experts_per_tok"));
}

TEST(rope_settings_are_read_in_both_spellings) {
  const std::string rule = R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                              "original_max_position_embeddings": 64)";
  const ModelConfig older =
      read(llama_with(R"("rope_theta": 500.0, "rope_scaling": {"type": "llama3", )" + rule + "}"));
  const ModelConfig newer =
      read(llama_with(R"("rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, )" + rule + "}"));
  for (const ModelConfig& config : {older, newer}) {
    CHECK_EQUAL(config.rope.type, std::string("llama3"));
    CHECK_CLOSE(config.rope.theta, 500.0, 0.0);
    CHECK_CLOSE(config.rope.original_max_positions, 64.0, 0.0);
  }
  CHECK_EQUAL(refusal(llama_with(R"("rope_scaling": {"type": "linear"})")), std::string("checkpoint factor"));
  const std::string gemma = R"("model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 7, )";
  const ModelConfig per_type = read(gemma + R"("rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
      "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}})");
  CHECK_CLOSE(per_type.rope.factor, 8.0, 0.0);
  CHECK_CLOSE(per_type.rope.theta, 1e5, 0.0);
  CHECK_CLOSE(per_type.sliding_rope.theta, 2e4, 0.0);
  const ModelConfig legacy = read(gemma + R"("rope_theta": 1e5, "rope_local_base_freq": 2e4,
                                             "rope_scaling": {"rope_type": "linear", "factor": 8.0})");
  CHECK_CLOSE(legacy.rope.factor, 8.0, 0.0);
  CHECK_EQUAL(legacy.sliding_rope.type, std::string("default"));
  CHECK_CLOSE(legacy.sliding_rope.theta, 2e4, 0.0);
  const ModelConfig silent = read(gemma + R"("rms_norm_eps": 1e-6)");
  CHECK_CLOSE(silent.rope.theta, 1e6, 0.0);
  CHECK_CLOSE(silent.sliding_rope.theta, 1e4, 0.0);
}

TEST(frequencies_follow_the_rules) {
  RopeSettings settings;
  settings.theta = 100.0;
  const RopeFrequencies plain = rope_frequencies(settings, 8, {});
  CHECK_CLOSE(plain.inverse[0], 1.0, 1e-15);
  CHECK_CLOSE(plain.inverse[2], 0.1, 1e-15);
  settings.partial_factor = 0.5;
  CHECK_EQUAL(rope_frequencies(settings, 8, {}).inverse.size(), 2u);
  CHECK_THROWS(Error, rope_frequencies(settings, 6, {}));
  settings.partial_factor = 1.0;
  const std::vector<float> divisors{1.0f, 2.0f, 4.0f, 8.0f};
  CHECK_CLOSE(rope_frequencies(settings, 8, divisors).inverse[2], 0.025, 1e-15);
  CHECK_THROWS(Error, rope_frequencies(settings, 8, std::vector<float>{1.0f, 0.0f, 1.0f, 1.0f}));

  settings.type = "linear";
  settings.factor = 4.0;
  CHECK_CLOSE(rope_frequencies(settings, 8, {}).inverse[0], 0.25, 1e-15);

  settings.type = "llama3";
  settings.original_max_positions = 2 * std::numbers::pi * 20;
  settings.low_frequency_factor = 1.0;
  settings.high_frequency_factor = 4.0;
  // Turns over the original context are 20, 6.32, 2 and 0.632: kept, kept, a third of the way, interpolated.
  const RopeFrequencies bands = rope_frequencies(settings, 8, {});
  CHECK_CLOSE(bands.inverse[1], plain.inverse[1], 1e-15);
  CHECK_CLOSE(bands.inverse[2], plain.inverse[2] * (1.0 / 3 + 2.0 / 3 / 4), 1e-15);
  CHECK_CLOSE(bands.inverse[3], plain.inverse[3] / 4, 1e-15);

  settings.type = "yarn";
  settings.original_max_positions = 64;
  const RopeFrequencies ramp = rope_frequencies(settings, 8, {});
  CHECK_CLOSE(ramp.attention_factor, 0.1 * std::log(4.0) + 1, 1e-15);
  CHECK_CLOSE(ramp.inverse[0], plain.inverse[0], 1e-15);
  // Pairs that turn 32 times and once lie at 8 ln(64 / (2 pi n)) / (2 ln 100): -0.995 and 2.016, so the ramp is 0 to 3.
  CHECK_CLOSE(ramp.inverse[1], plain.inverse[1] * (2.0 / 3 + 1.0 / 3 / 4), 1e-15);
  CHECK_CLOSE(ramp.inverse[3], plain.inverse[3] / 4, 1e-15);
}

TEST(angles_grow_and_stay_the_same) {
  RopeSettings settings;
  ThreadPool threads(1);
  Context context = open_device("cpu", threads);
  RotaryAngles angles(rope_frequencies(settings, 8, {}));
  const auto cosine = [&](std::int64_t position) { return angles.table().data[position * 8 + 1]; };
  angles.cover(context, 101);
  const float before = cosine(100);
  angles.cover(context, 5000);
  CHECK_EQUAL(cosine(100), before);
  CHECK_CLOSE(cosine(4999), std::cos(499.9), 1e-5);
}

TEST(weights_have_their_gguf_names) {
  CHECK_EQUAL(gguf_name("model.embed_tokens.weight", "post_attention_layernorm"), std::string("token_embd.weight"));
  CHECK_EQUAL(gguf_name("lm_head.weight", ""), std::string("output.weight"));
  CHECK_EQUAL(gguf_name("model.layers.12.self_attn.q_proj.bias", ""), std::string("blk.12.attn_q.bias"));
  CHECK_EQUAL(gguf_name("model.layers.0.post_attention_layernorm.weight", "post_attention_layernorm"),
              std::string("blk.0.ffn_norm.weight"));
  CHECK_EQUAL(gguf_name("model.layers.0.post_attention_layernorm.weight", "pre_feedforward_layernorm"),
              std::string("blk.0.post_attention_norm.weight"));
  CHECK_EQUAL(gguf_name("model.layers.0.linear_attn.A_log", ""), std::string("blk.0.ssm_a"));
  CHECK_EQUAL(gguf_name("model.layers.0.mlp.shared_expert_gate.weight", ""),
              std::string("blk.0.ffn_gate_inp_shexp.weight"));
  CHECK_EQUAL(gguf_name("model.layers.0.mlp.experts.gate_up_proj", ""), std::string("blk.0.ffn_gate_up_exps.weight"));
  CHECK_EQUAL(layer_of("blk.17.attn_q.weight"), 17);
  CHECK_EQUAL(layer_of("model.language_model.layers.3.input_layernorm.weight"), 3);
  CHECK_EQUAL(layer_of("token_embd.weight"), -1);
  CHECK_EQUAL(layer_of("blk.x"), -1);
  CHECK(is_beside_text_model("mtp.fc.weight") && is_beside_text_model("model.visual.blocks.0.norm1.weight"));
  CHECK(!is_beside_text_model("model.norm.weight"));
}
