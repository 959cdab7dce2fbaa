// Tiny models in memory, and a bench that runs steps of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/devices.h"
#include "memory_source.h"
#include "models/model.h"

struct MemoryModel {
  std::string config;
  MemorySource source;
};

inline void add_feed_forward(MemorySource& source, const std::string& prefix, std::int64_t hidden, std::int64_t inner) {
  source.add_random(prefix + "gate_proj.weight", {inner, hidden});
  source.add_random(prefix + "up_proj.weight", {inner, hidden});
  source.add_random(prefix + "down_proj.weight", {hidden, inner});
}

inline void add_attention(MemorySource& source, const std::string& prefix, bool head_norms, bool gate) {
  source.add_random(prefix + "q_proj.weight", {gate ? 64 : 32, 32});
  source.add_random(prefix + "k_proj.weight", {16, 32});
  source.add_random(prefix + "v_proj.weight", {16, 32});
  source.add_random(prefix + "o_proj.weight", {32, 32});
  if (!head_norms) return;
  source.add_random(prefix + "q_norm.weight", {8});
  source.add_random(prefix + "k_norm.weight", {8});
}

// Hidden size 32, 4 heads of 8 over 2, 3 layers, vocabulary 48, tied.
inline MemoryModel memory_llama(const std::string& root = "model.") {
  MemoryModel model;
  model.config = R"({"model_type": "llama", "vocab_size": 48, "hidden_size": 32, "intermediate_size": 64,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256})";
  model.source.add_random(root + "embed_tokens.weight", {48, 32});
  model.source.add_random(root + "norm.weight", {32});
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = root + "layers." + std::to_string(layer) + ".";
    model.source.add_random(prefix + "input_layernorm.weight", {32});
    model.source.add_random(prefix + "post_attention_layernorm.weight", {32});
    add_attention(model.source, prefix + "self_attn.", false, false);
    add_feed_forward(model.source, prefix + "mlp.", 32, 64);
  }
  return model;
}

// As the Llama, with windows of 4 positions in the first two layers.
inline MemoryModel memory_gemma3() {
  MemoryModel model = memory_llama();
  model.config = R"({"model_type": "gemma3_text", "vocab_size": 48, "hidden_size": 32, "intermediate_size": 64,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
      "query_pre_attn_scalar": 8, "sliding_window": 4, "sliding_window_pattern": 3, "max_position_embeddings": 256})";
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    for (const char* name : {"self_attn.q_norm", "self_attn.k_norm"}) {
      model.source.add_random(prefix + name + ".weight", {8});
    }
    for (const char* name : {"pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
      model.source.add_random(prefix + name + ".weight", {32});
    }
  }
  return model;
}

// Layers linear, full, linear; with experts: 6, of which 2 are chosen.
inline MemoryModel memory_qwen3_5(bool experts) {
  MemoryModel model;
  model.config = std::string(R"({"model_type": "qwen3_5_)") + (experts ? "moe_" : "") + R"(text", "vocab_size": 48,
      "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256,
      "layer_types": ["linear_attention", "full_attention", "linear_attention"],
      "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
      "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16})";
  MemorySource& source = model.source;
  source.add_random("model.embed_tokens.weight", {48, 32});
  source.add_random("model.norm.weight", {32});
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    source.add_random(prefix + "input_layernorm.weight", {32});
    source.add_random(prefix + "post_attention_layernorm.weight", {32});
    if (layer == 1) {
      add_attention(source, prefix + "self_attn.", true, true);
    } else {
      const std::string linear = prefix + "linear_attn.";
      source.add_random(linear + "in_proj_qkv.weight", {64, 32});
      source.add_random(linear + "in_proj_z.weight", {32, 32});
      source.add_random(linear + "in_proj_a.weight", {4, 32});
      source.add_random(linear + "in_proj_b.weight", {4, 32});
      source.add_random(linear + "conv1d.weight", {64, 1, 4});
      source.add_random(linear + "A_log", {4});
      source.add_random(linear + "dt_bias", {4});
      source.add_random(linear + "norm.weight", {8});
      source.add_random(linear + "out_proj.weight", {32, 32});
    }
    if (!experts) {
      add_feed_forward(source, prefix + "mlp.", 32, 64);
      continue;
    }
    source.add_random(prefix + "mlp.gate.weight", {6, 32}, 1.0f);
    source.add_random(prefix + "mlp.shared_expert_gate.weight", {1, 32});
    add_feed_forward(source, prefix + "mlp.shared_expert.", 32, 16);
    for (int expert = 0; expert < 6; ++expert) {
      add_feed_forward(source, prefix + "mlp.experts." + std::to_string(expert) + ".", 32, 16);
    }
  }
  return model;
}

// Rows of one sequence of a step; logits of the rows in `wanted`, counted within this word.
struct Word {
  std::int32_t sequence = 0;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> wanted;
};

class ModelBench {
 public:
  // The model reads from the memory as long as it lives.
  explicit ModelBench(MemoryModel&&, int = 2, const pocket::ModelOptions& = {}, std::string_view = {}) = delete;
  explicit ModelBench(const MemoryModel& memory, int num_threads = 2, const pocket::ModelOptions& options = {},
                      std::string_view device = "cpu")
      : threads_(num_threads), context_(pocket::open_device(device, threads_)) {
    model_ = pocket::load_model(context_, memory.config, memory.source, options, nullptr);
    pocket::KvShape shape = pocket::kv_shape(model_->shape().caches);
    shape.block_size = pocket::kv_block_size(context_);
    const std::int32_t num_blocks = kPositions / shape.block_size;
    shape.num_blocks = kSequences * num_blocks;
    kv_.emplace(context_, shape);
    if (const auto state = pocket::recurrent_state(model_->shape().caches)) {
      states_.emplace(context_, state->state_bytes, kSequences);
    }
    for (std::int32_t sequence = 0; sequence < kSequences; ++sequence) {
      for (std::int32_t block = 0; block < num_blocks; ++block) {
        blocks_[sequence].push_back(block * kSequences + (sequence + block) % kSequences);
      }
    }
  }

  pocket::Model& model() { return *model_; }

  // Logits of all wanted rows, in order.
  std::vector<float> run(const std::vector<Word>& words) {
    std::vector<std::int32_t> tokens, wanted;
    std::vector<pocket::SequenceRows> sequences;
    for (const Word& word : words) {
      const auto first = static_cast<std::int32_t>(tokens.size());
      tokens.insert(tokens.end(), word.tokens.begin(), word.tokens.end());
      for (const std::int32_t row : word.wanted) wanted.push_back(first + row);
      sequences.push_back({.first_row = first, .num_rows = static_cast<std::int32_t>(word.tokens.size()),
                           .position = positions_[word.sequence], .blocks = blocks_[word.sequence],
                           .state_slot = word.sequence, .chunked = false});
      positions_[word.sequence] += static_cast<std::int64_t>(word.tokens.size());
    }
    return run_step({.tokens = tokens, .sequences = sequences, .logit_rows = wanted});
  }

  std::vector<float> run_step(const pocket::Step& step) {
    std::vector<float> logits(step.logit_rows.size() * static_cast<std::size_t>(model_->shape().vocab_size));
    pocket::DeviceBuffer computed(context_.device, logits.size() * sizeof(float));
    pocket::Caches caches{*kv_, states_ ? &*states_ : nullptr};
    model_->forward(context_, step, caches, computed.as<float>());
    pocket::copy_to_host(context_, static_cast<const float*>(computed.as<float>()), std::span(logits));
    return logits;
  }

 private:
  static constexpr std::int32_t kSequences = 4;
  static constexpr std::int32_t kPositions = 128;  // of a sequence, at most

  pocket::ThreadPool threads_;
  pocket::Context context_;
  std::unique_ptr<pocket::Model> model_;
  std::optional<pocket::KvCache> kv_;
  std::optional<pocket::RecurrentStates> states_;
  std::vector<std::int32_t> blocks_[kSequences];
  std::int64_t positions_[kSequences] = {};
};

inline std::vector<std::int32_t> tokens_of(int count, int seed) {
  std::vector<std::int32_t> tokens;
  for (int index = 0; index < count; ++index) tokens.push_back((index * index * 7 + index * 3 + seed * 11) % 48);
  return tokens;
}

inline std::vector<std::int32_t> all_rows(int count) {
  std::vector<std::int32_t> rows;
  for (int row = 0; row < count; ++row) rows.push_back(row);
  return rows;
}
