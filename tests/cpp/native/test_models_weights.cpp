// Checkpoints as they come: other spellings of names, tensors too many, too few and of the wrong shape.
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "core/error.h"
#include "memory_models.h"

using namespace pocket;

namespace {

std::string refusal(const MemoryModel& memory) {
  try {
    ModelBench bench(memory, 1);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<float> logits_of(const MemoryModel& memory) {
  return ModelBench(memory, 1).run({{0, {5, 6, 7, 8}, {0, 1, 2, 3}}});
}

// The same tensors under other names.
MemoryModel renamed(const MemoryModel& memory, const std::string& from, const std::string& to) {
  MemoryModel other;
  other.config = memory.config;
  for (const StoredTensor& tensor : memory.source.tensors()) {
    const std::string name = tensor.name.starts_with(from) ? to + tensor.name.substr(from.size()) : tensor.name;
    other.source.add_bytes(name, tensor.dtype, tensor.shape, {tensor.data.begin(), tensor.data.end()});
  }
  return other;
}

}  // namespace

TEST(every_prefix_is_found) {
  const MemoryModel memory = memory_llama();
  const std::vector<float> expected = logits_of(memory);
  for (const char* prefix : {"model.language_model.", "language_model.model.", ""}) {
    CHECK(logits_of(renamed(memory, "model.", prefix)) == expected);
  }
}

TEST(a_head_of_its_own_and_a_copy_of_the_embedding) {
  MemoryModel memory = memory_llama();
  const std::vector<float> tied = logits_of(memory);
  memory.source.add_random("lm_head.weight", {48, 32});
  CHECK(logits_of(memory) != tied);
  memory.config.insert(1, R"("tie_word_embeddings": true, )");
  CHECK(logits_of(memory) == tied);
  MemoryModel wrapped = renamed(memory_llama(), "model.", "language_model.model.");
  wrapped.source.add_random("language_model.lm_head.weight", {48, 32});
  CHECK(logits_of(wrapped) != tied);
}

TEST(missing_misshapen_and_leftover_tensors) {
  MemoryModel memory = memory_llama();
  memory.source.remove("model.layers.1.mlp.up_proj.weight");
  CHECK(mentions(refusal(memory), "no tensor \"model.layers.1.mlp.up_proj.weight\""));
  memory.source.add_random("model.layers.1.mlp.up_proj.weight", {65, 32});
  CHECK(mentions(refusal(memory), "\"model.layers.1.mlp.up_proj.weight\" has shape [65, 32]"));
  CHECK(mentions(refusal(memory), "asks for [64, 32]"));
  memory = memory_llama();
  memory.source.add_random("model.layers.1.self_attn.q_proj.bias", {32});
  CHECK(mentions(refusal(memory), "1 tensors that this model has no place for (model.layers.1.self_attn.q_proj.bias)"));
  memory = memory_llama();
  memory.source.add_random("mtp.fc.weight", {32, 64});
  memory.source.add_random("model.visual.patch_embed.proj.weight", {4, 4});
  memory.source.add_random("model.layers.0.self_attn.rotary_emb.inv_freq", {4});
  CHECK_EQUAL(refusal(memory), std::string());
}

TEST(experts_in_one_tensor_are_the_experts_one_by_one) {
  const MemoryModel apart = memory_qwen3_5(true);
  MemoryModel fused;
  fused.config = apart.config;
  for (const StoredTensor& tensor : apart.source.tensors()) {
    if (mentions(tensor.name, ".experts.")) continue;
    fused.source.add_bytes(tensor.name, tensor.dtype, tensor.shape, {tensor.data.begin(), tensor.data.end()});
  }
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    std::vector<std::byte> gate_up, down;
    const auto append = [&](std::vector<std::byte>& bytes, int expert, const std::string& kind) {
      const StoredTensor* tensor = apart.source.find(prefix + std::to_string(expert) + "." + kind + ".weight");
      bytes.insert(bytes.end(), tensor->data.begin(), tensor->data.end());
    };
    for (int expert = 0; expert < 6; ++expert) {
      append(gate_up, expert, "gate_proj");
      append(gate_up, expert, "up_proj");
      append(down, expert, "down_proj");
    }
    fused.source.add_bytes(prefix + "gate_up_proj", DType::kF32, {6, 32, 32}, gate_up);
    fused.source.add_bytes(prefix + "down_proj", DType::kF32, {6, 32, 16}, down);
  }
  CHECK(logits_of(fused) == logits_of(apart));
}

TEST(fp8_needs_its_tiles_and_scales) {
  MemoryModel memory = memory_llama();
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  memory.source.remove(name);
  memory.source.add_bytes(name, DType::kF8E4M3, {64, 32}, std::vector<std::byte>(64 * 32, std::byte{0x38}));
  CHECK(mentions(refusal(memory), "quantization_config"));
  memory.config.insert(1, R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [48, 16]}, )");
  CHECK(mentions(refusal(memory), "no tensor \"" + name + "_scale_inv\""));
  memory.source.add(name + "_scale_inv", {2, 2}, {0.5f, 0.25f, 0.125f, 1.0f});
  // Code 0x38 is 1.0, so the weight is its scales, spread over their tiles.
  MemoryModel plain = memory_llama();
  std::vector<float> values;
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < 32; ++column) {
      values.push_back(row < 48 ? (column < 16 ? 0.5f : 0.25f) : (column < 16 ? 0.125f : 1.0f));
    }
  }
  plain.source.remove(name);
  plain.source.add(name, {64, 32}, values);
  const std::vector<float> quantised = logits_of(memory), expected = logits_of(plain);
  for (std::size_t index = 0; index < expected.size(); ++index) CHECK_CLOSE(quantised[index], expected[index], 1e-4);
}

TEST(types_that_are_no_weights_are_refused) {
  MemoryModel memory = memory_llama();
  memory.source.remove("model.layers.0.mlp.up_proj.weight");
  memory.source.add_bytes("model.layers.0.mlp.up_proj.weight", DType::kI32, {64, 32},
                          std::vector<std::byte>(64 * 32 * 4));
  CHECK(mentions(refusal(memory), "I32"));
  memory = memory_llama();
  memory.source.remove("model.norm.weight");
  memory.source.add_bytes("model.norm.weight", DType::kQ8_0, {32}, std::vector<std::byte>(34));
  CHECK(mentions(refusal(memory), "\"model.norm.weight\" is of type Q8_0"));
  memory = memory_llama();
  memory.source.remove("model.embed_tokens.weight");
  memory.source.add_bytes("model.embed_tokens.weight", DType::kI64, {48, 32}, std::vector<std::byte>(48 * 32 * 8));
  CHECK(mentions(refusal(memory), "cannot be looked up"));
}
