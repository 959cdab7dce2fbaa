// Qwen3 (dense): Llama with a plain norm of each query and key head.
#include "models/families.h"
#include "models/llama.h"

namespace pocket {

std::unique_ptr<Model> load_qwen3(const LoadRequest& request) {
  return load_llama_like(request, {.head_norms = true, .permuted_gguf = false});
}

}  // namespace pocket
