#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/half.h"
#include "kernels/reference/memory.h"
#include "kernels/reference/operations.h"

namespace pocket::reference {
namespace {

// Another size than other devices', so that nothing above can take one for granted.
constexpr std::int32_t kBlockSize = 8;

// Blocks are [num_layers][2: keys, values][block_size][num_kv_heads * head_dim] floats, rounded to what the cache's
// type can hold.
struct Place {
  std::int64_t width = 0;
  std::int64_t keys = 0, values = 0;  // floats from the cache's beginning
};

std::int64_t width_of(const KvShape& shape) { return std::int64_t{shape.num_kv_heads} * shape.head_dim; }

std::size_t block_bytes(const KvShape& shape) {
  return static_cast<std::size_t>(2 * shape.num_layers * shape.block_size * width_of(shape)) * sizeof(float);
}

Place place_of(const KvShape& shape, std::int32_t layer, std::int64_t block, std::int64_t position) {
  const std::int64_t width = width_of(shape);
  const std::int64_t keys = ((block * shape.num_layers + layer) * 2 * shape.block_size + position) * width;
  return {width, keys, keys + shape.block_size * width};
}

// The place of a position of a sequence.
Place place_of(const KvShape& shape, std::int32_t layer, const SequenceRows& sequence, std::int64_t position) {
  const std::int64_t block = sequence.blocks[static_cast<std::size_t>(position / shape.block_size)];
  return place_of(shape, layer, block, position % shape.block_size);
}

// An infinity in the cache would make NaN of weight 0 times it.
float saturated(float x, float limit) { return std::isnan(x) ? x : std::clamp(x, -limit, limit); }

// One head's key or value.
void round_head(KvType type, const float* x, std::int64_t head_dim, float* out) {
  switch (type) {
    case KvType::kF32:
      for (std::int64_t d = 0; d < head_dim; ++d) out[d] = saturated(x[d], std::numeric_limits<float>::max());
      return;
    case KvType::kF16:
      for (std::int64_t d = 0; d < head_dim; ++d) out[d] = half_to_float(float_to_half(saturated(x[d], 65504.0f)));
      return;
    case KvType::kQ8_0: break;
  }
  float largest = 0.0f;
  for (std::int64_t d = 0; d < head_dim; ++d) largest = std::max(largest, std::abs(x[d]));
  // Vectors too small for a normal scale are stored as zero.
  const bool tiny = largest < 0x1p-100f;
  const float scale = largest / 127.0f;
  for (std::int64_t d = 0; d < head_dim; ++d) {
    out[d] = tiny ? 0.0f : scale * std::nearbyint(x[d] * (127.0f / largest));
  }
}

void store_kv(Context& context, KvCache& cache, std::int32_t layer, const SequenceTable& sequences, const float* k,
              const float* v, std::int64_t stride) {
  check_device(context, cache.device(), "A key-value cache");
  const KvShape& shape = cache.shape();
  float* content = reinterpret_cast<float*>(reach(cache.data(), static_cast<std::int64_t>(cache.num_bytes())));
  for (const SequenceRows& sequence : rows_of(context, sequences)) {
    const std::int64_t width = width_of(shape);
    const float* keys = reach_rows(k + sequence.first_row * stride, sequence.num_rows, width, stride);
    const float* values = reach_rows(v + sequence.first_row * stride, sequence.num_rows, width, stride);
    for (std::int64_t row = 0; row < sequence.num_rows; ++row) {
      const Place place = place_of(shape, layer, sequence, sequence.position + row);
      for (std::int64_t at = 0; at < width; at += shape.head_dim) {
        round_head(shape.type, keys + row * stride + at, shape.head_dim, content + place.keys + at);
        round_head(shape.type, values + row * stride + at, shape.head_dim, content + place.values + at);
      }
    }
  }
}

void load_kv(Context& context, const KvCache& cache, std::int32_t layer, std::int32_t block, std::int32_t position,
             std::span<float> k, std::span<float> v) {
  check_device(context, cache.device(), "A key-value cache");
  const auto* content =
      reinterpret_cast<const float*>(reach(cache.data(), static_cast<std::int64_t>(cache.num_bytes())));
  const Place place = place_of(cache.shape(), layer, block, position);
  std::copy_n(content + place.keys, place.width, k.begin());
  std::copy_n(content + place.values, place.width, v.begin());
}

void attend(Context& context, const KvCache& cache, std::int32_t layer, const AttentionShape& shape,
            const SequenceTable& sequences, const float* q, std::int64_t q_stride, float* out,
            std::int64_t out_stride) {
  check_device(context, cache.device(), "A key-value cache");
  const KvShape& kv = cache.shape();
  const auto* content =
      reinterpret_cast<const float*>(reach(cache.data(), static_cast<std::int64_t>(cache.num_bytes())));
  const std::int64_t head_dim = kv.head_dim;
  const std::int64_t width = shape.num_heads * head_dim;
  const std::int32_t group = shape.num_heads / kv.num_kv_heads;
  std::vector<double> weights;
  for (const SequenceRows& sequence : rows_of(context, sequences)) {
    const float* queries = reach_rows(q + sequence.first_row * q_stride, sequence.num_rows, width, q_stride);
    float* results = reach_rows(out + sequence.first_row * out_stride, sequence.num_rows, width, out_stride);
    for (std::int64_t row = 0; row < sequence.num_rows; ++row) {
      const std::int64_t position = sequence.position + row;
      const std::int64_t first = shape.window > 0 ? std::max<std::int64_t>(0, position - shape.window + 1) : 0;
      for (std::int32_t head = 0; head < shape.num_heads; ++head) {
        const std::int64_t offset = head / group * head_dim;
        const float* query = queries + row * q_stride + head * head_dim;
        weights.clear();
        double largest = -INFINITY;
        for (std::int64_t j = first; j <= position; ++j) {
          const float* key = content + place_of(kv, layer, sequence, j).keys + offset;
          double score = 0.0;
          for (std::int64_t d = 0; d < head_dim; ++d) score += double{query[d]} * double{key[d]};
          weights.push_back(score * shape.scale);
          largest = std::max(largest, weights.back());
        }
        double sum = 0.0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        std::vector<double> mean(static_cast<std::size_t>(head_dim), 0.0);
        for (std::int64_t j = first; j <= position; ++j) {
          const float* value = content + place_of(kv, layer, sequence, j).values + offset;
          const double weight = weights[static_cast<std::size_t>(j - first)];
          for (std::int64_t d = 0; d < head_dim; ++d) mean[static_cast<std::size_t>(d)] += weight * double{value[d]};
        }
        float* to = results + row * out_stride + head * head_dim;
        for (std::int64_t d = 0; d < head_dim; ++d) to[d] = static_cast<float>(mean[static_cast<std::size_t>(d)] / sum);
      }
    }
  }
}

}  // namespace

void add_attention(Operations& table) noexcept {
  table.kv_block_size = kBlockSize;
  table.kv_block_bytes = block_bytes;
  table.store_kv = store_kv;
  table.load_kv = load_kv;
  table.attend = attend;
}

}  // namespace pocket::reference
