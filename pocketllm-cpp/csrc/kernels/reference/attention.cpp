#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/cpu/attention/kv_cache.h"

namespace pocket {

void attend_reference(const KvCache& cache, std::int32_t layer, const AttentionShape& shape,
                      std::span<const SequenceRows> sequences, const float* q, std::int64_t q_stride, float* out,
                      std::int64_t out_stride) {
  const KvCache::State& state = cache.state();
  const std::int32_t head_dim = state.shape.head_dim;
  const std::int32_t group = shape.num_heads / state.shape.num_kv_heads;
  std::vector<double> weights;
  for (const SequenceRows& sequence : sequences) {
    for (std::int64_t row = 0; row < sequence.num_rows; ++row) {
      const std::int64_t position = sequence.position + row;
      const std::int64_t first = shape.window > 0 ? std::max<std::int64_t>(0, position - shape.window + 1) : 0;
      for (std::int32_t head = 0; head < shape.num_heads; ++head) {
        const std::int32_t kv_head = head / group;
        const float* query = q + (sequence.first_row + row) * q_stride + std::int64_t{head} * head_dim;
        const auto place = [&](std::int64_t j) {
          return std::pair(sequence.blocks[static_cast<std::size_t>(j / KvShape::kBlockSize)],
                           static_cast<std::int32_t>(j % KvShape::kBlockSize));
        };
        weights.clear();
        double largest = -INFINITY;
        for (std::int64_t j = first; j <= position; ++j) {
          const auto [block, slot] = place(j);
          double score = 0.0;
          for (std::int32_t d = 0; d < head_dim; ++d) score += query[d] * state.key(layer, kv_head, block, slot, d);
          weights.push_back(score * shape.scale);
          largest = std::max(largest, weights.back());
        }
        double sum = 0.0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        float* to = out + (sequence.first_row + row) * out_stride + std::int64_t{head} * head_dim;
        for (std::int32_t d = 0; d < head_dim; ++d) {
          double mean = 0.0;
          for (std::int64_t j = first; j <= position; ++j) {
            const auto [block, slot] = place(j);
            mean += weights[static_cast<std::size_t>(j - first)] * state.value(layer, kv_head, block, slot, d);
          }
          to[d] = static_cast<float>(mean / sum);
        }
      }
    }
  }
}

}  // namespace pocket
