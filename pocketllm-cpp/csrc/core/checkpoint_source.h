// The tensors of a checkpoint, whatever its format.
#pragma once

#include <memory>
#include <string>

#include "core/tensor_source.h"

namespace pocket {

// Opens a checkpoint's weights, mapped: a GGUF file (any part of a split model), a .safetensors file, or a folder with
// model.safetensors, its sharded form with an index, or one GGUF model. A folder with both formats counts as
// safetensors.
// Throws Error: kCheckpoint for a path that is none of these, or a file that is missing or malformed;
// kUnsupportedFeature for a stored type that this engine does not read.
// The source may be used from any thread; nothing of the tensors' data has been read when this returns.
std::unique_ptr<TensorSource> open_tensor_source(const std::string& path);

}  // namespace pocket
