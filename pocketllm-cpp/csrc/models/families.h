// The families this build has; each is loaded by the file of its name.
#pragma once

#include <memory>

#include "models/decoder.h"

namespace pocket {

std::unique_ptr<Model> load_llama(const LoadRequest& request);  // and Mistral
std::unique_ptr<Model> load_qwen2(const LoadRequest& request);
std::unique_ptr<Model> load_qwen3(const LoadRequest& request);
std::unique_ptr<Model> load_gemma3(const LoadRequest& request);
std::unique_ptr<Model> load_qwen3_5(const LoadRequest& request);  // dense and mixture of experts

}  // namespace pocket
