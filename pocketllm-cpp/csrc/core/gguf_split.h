// A GGUF model in several files: each a GGUF of its own with part of the tensors.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/gguf.h"

namespace pocket {

// All parts of the split model that the file of this path is one of, in order; the path alone when its name is not
// that of a part ("<stem>-00001-of-00003.gguf"). Throws Error(kCheckpoint) for a name whose numbers do not fit each
// other; whether the files exist is not looked at.
std::vector<std::string> split_parts(const std::string& path);

// Checks what the parts, in order, say about themselves. `paths` are for error messages.
// Throws Error(kCheckpoint) when one says that it is another part, or belongs to another count, or a part is missing.
void check_split(std::span<const GgufFile> parts, std::span<const std::string> paths);

}  // namespace pocket
