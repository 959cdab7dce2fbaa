// Qwen2: Llama with biases on q, k and v (see config.cpp).
#include "models/families.h"
#include "models/llama.h"

namespace pocket {

std::unique_ptr<Model> load_qwen2(const LoadRequest& request) {
  return load_llama_like(request, {.head_norms = false, .permuted_gguf = false});
}

}  // namespace pocket
