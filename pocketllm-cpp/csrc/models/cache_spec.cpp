#include "models/cache_spec.h"

#include <numeric>

#include "core/error.h"

namespace pocket {

KvShape kv_shape(std::span<const CacheSpec> specs) {
  KvShape shape;
  for (const CacheSpec& each : specs) {
    const auto* spec = std::get_if<KeyValueSpec>(&each);
    if (spec == nullptr) continue;
    const bool is_first = shape.num_layers++ == 0;
    if (!is_first && (spec->num_kv_heads != shape.num_kv_heads || spec->head_dim != shape.head_dim)) {
      throw Error(ErrorKind::kUnsupportedFeature,
                  "This model's attention layers keep keys and values of different sizes; this build has one cache for "
                  "all of them.");
    }
    shape.num_kv_heads = spec->num_kv_heads;
    shape.head_dim = spec->head_dim;
  }
  return shape;
}

std::optional<RecurrentSpec> recurrent_state(std::span<const CacheSpec> specs) {
  std::optional<RecurrentSpec> all;
  for (const CacheSpec& each : specs) {
    const auto* spec = std::get_if<RecurrentSpec>(&each);
    if (spec == nullptr) continue;
    if (!all) all = RecurrentSpec{0, 1};
    all->state_bytes += spec->state_bytes;
    all->segment_length = std::lcm(all->segment_length, spec->segment_length);
  }
  return all;
}

}  // namespace pocket
