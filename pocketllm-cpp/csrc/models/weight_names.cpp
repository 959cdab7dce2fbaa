#include "models/weight_names.h"

#include <charconv>

namespace pocket {
namespace {

struct NamePair {
  std::string_view hugging_face;
  std::string_view gguf;
};

constexpr NamePair kTop[] = {
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
};

constexpr NamePair kLayer[] = {
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "post_attention_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"linear_attn.in_proj_qkv", "attn_qkv"},
    {"linear_attn.in_proj_z", "attn_gate"},
    {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.in_proj_b", "ssm_beta"},
    {"linear_attn.conv1d", "ssm_conv1d"},
    {"linear_attn.norm", "ssm_norm"},
    {"linear_attn.out_proj", "ssm_out"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.experts.gate_proj", "ffn_gate_exps"},
    {"mlp.experts.up_proj", "ffn_up_exps"},
    {"mlp.experts.down_proj", "ffn_down_exps"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
};

// Whole names, for tensors that are not a module's weight.
constexpr NamePair kLayerWhole[] = {
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
};

constexpr std::string_view kLayers = "model.layers.";

template <std::size_t n>
std::string_view find_pair(const NamePair (&pairs)[n], std::string_view name) {
  for (const NamePair& pair : pairs) {
    if (pair.hugging_face == name) return pair.gguf;
  }
  return {};
}

}  // namespace

std::string gguf_name(std::string_view name, std::string_view ffn_norm) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::string(name);
  const std::string_view stem = name.substr(0, dot);
  const std::string kind(name.substr(dot));
  if (!name.starts_with(kLayers)) {
    const std::string_view top = find_pair(kTop, stem);
    return top.empty() ? std::string(name) : std::string(top) + kind;
  }
  const std::string_view rest = name.substr(kLayers.size());
  const std::size_t end = rest.find('.');
  if (end == std::string_view::npos) return std::string(name);
  const std::string block = "blk." + std::string(rest.substr(0, end)) + ".";
  const std::string_view part = rest.substr(end + 1);
  const std::string_view whole = find_pair(kLayerWhole, part);
  if (!whole.empty()) return block + std::string(whole);
  const std::string_view part_stem = part.substr(0, part.size() - kind.size());
  if (part_stem == ffn_norm) return block + "ffn_norm" + kind;
  const std::string_view pair = find_pair(kLayer, part_stem);
  return pair.empty() ? std::string(name) : block + std::string(pair) + kind;
}

bool is_beside_text_model(std::string_view name) {
  for (const std::string_view prefix : {"mtp.", "visual.", "vision_tower.", "multi_modal_projector."}) {
    if (name.starts_with(prefix)) return true;
    if (name.starts_with("model.") && name.substr(6).starts_with(prefix)) return true;
  }
  return name.ends_with("rotary_emb.inv_freq");
}

std::int64_t layer_of(std::string_view name) {
  std::size_t start = std::string_view::npos;
  if (name.starts_with("blk.")) {
    start = 4;
  } else {
    const std::size_t at = name.find("layers.");
    if (at != std::string_view::npos && (at == 0 || name[at - 1] == '.')) start = at + 7;
  }
  if (start == std::string_view::npos) return -1;
  std::int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data() + start, name.data() + name.size(), layer);
  const bool whole = error == std::errc{} && end != name.data() + name.size() && *end == '.';
  return whole ? layer : -1;
}

}  // namespace pocket
