// One tensor, two names: models ask for Hugging Face's, and GGUF files have their own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pocket {

// The GGUF name of a Hugging Face name such as "model.layers.3.mlp.up_proj.weight". Names a GGUF does not know come
// back unchanged. `ffn_norm` is the norm that GGUF calls so: "post_attention_layernorm", or in families that have both
// "pre_feedforward_layernorm".
std::string gguf_name(std::string_view name, std::string_view ffn_norm);

// Whether the tensor belongs to something beside the text model: a vision tower, a draft head, or numbers that are
// computed here.
bool is_beside_text_model(std::string_view name);

// The layer a stored name belongs to, in either format; -1 for none.
std::int64_t layer_of(std::string_view name);

}  // namespace pocket
