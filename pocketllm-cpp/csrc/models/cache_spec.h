// What a layer keeps of a sequence between steps. A model declares one spec per layer; the engine makes the caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "kernels/attention.h"

namespace pocket {

// A key and a value per position.
struct KeyValueSpec {
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int64_t window = 0;  // positions that a row sees, its own included; 0: all
};

// A state of fixed size, whatever the number of positions.
struct RecurrentSpec {
  std::size_t state_bytes = 0;  // of one sequence, on the model's device
  // Rows of a prompt are computed in segments, which begin at multiples of this: a state can be kept there alone, to
  // continue from later with the same bits.
  std::int64_t segment_length = 0;
};

using CacheSpec = std::variant<KeyValueSpec, RecurrentSpec>;

// The cache of all attention layers; blocks and type are left to the engine. Throws Error(kUnsupportedFeature) when they
// differ in size: one cache holds them all so far.
KvShape kv_shape(std::span<const CacheSpec> specs);

// What the recurrent layers keep together; nothing when there are none.
std::optional<RecurrentSpec> recurrent_state(std::span<const CacheSpec> specs);

}  // namespace pocket
