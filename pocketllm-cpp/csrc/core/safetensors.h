// Safetensors: a u64 header length, that many bytes of JSON {name: {dtype, shape, data_offsets}} with an optional
// __metadata__ of strings, and the data that the offsets count from. Little-endian.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor_source.h"

namespace pocket {

// The tensors of one file, in file order; their data points into `file`, whose name for error messages is `where`.
// Elements of BOOL are given as kU8.
// Throws Error: kCheckpoint for a file that is malformed anywhere, kUnsupportedFeature for an element type that the
// format has and this engine does not read.
std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> file, std::string_view where);

// One line of an index file's weight_map.
struct ShardEntry {
  std::string tensor;
  std::string file;  // relative to the index's folder, and inside it
};

// The weight_map of a model.safetensors.index.json. Throws Error(kCheckpoint) when it is malformed or names a file
// outside the folder; whether the files exist is not looked at.
std::vector<ShardEntry> parse_shard_index(std::string_view text, std::string_view where);

}  // namespace pocket
