// GGUF, versions 2 and 3, little-endian: "GGUF", u32 version, u64 tensor count, u64 metadata count, the metadata, the
// tensor list, and the data, aligned to general.alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor_source.h"

namespace pocket {

// One GGUF file. Of its metadata only what places the tensors is kept: a model's configuration and tokenizer are read
// elsewhere, and come to the engine as text and ids.
struct GgufFile {
  std::vector<StoredTensor> tensors;  // in file order; their data points into the file's bytes
  // What a part of a split model says about itself. A value that is not an integer reads as -1, which no count equals.
  std::optional<std::int64_t> split_number;         // split.no, from 0
  std::optional<std::int64_t> split_count;          // split.count
  std::optional<std::int64_t> split_tensors_count;  // split.tensors.count, of all parts
};

// Parses one file, whose name for error messages is `where`.
// Throws Error: kCheckpoint for a file that is malformed anywhere in its header, kUnsupportedFeature for a tensor of a
// type that the format has and this engine does not read.
GgufFile parse_gguf(std::span<const std::byte> file, std::string_view where);

// True when the file begins as a GGUF does.
bool is_gguf(std::span<const std::byte> file) noexcept;

}  // namespace pocket
