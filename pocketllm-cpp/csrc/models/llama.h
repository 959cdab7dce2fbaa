// The Llama family's decoder, which Qwen2 and Qwen3 vary.
#pragma once

#include <memory>

#include "models/decoder.h"

namespace pocket {

struct LlamaTraits {
  bool head_norms = false;     // norms of each query and key head, before rotation
  bool permuted_gguf = false;  // the family's GGUF files have the rows of q and k in pairs of neighbours
};

std::unique_ptr<Model> load_llama_like(const LoadRequest& request, const LlamaTraits& traits);

}  // namespace pocket
