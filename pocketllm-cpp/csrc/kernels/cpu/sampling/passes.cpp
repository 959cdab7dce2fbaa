#include "kernels/cpu/sampling/passes.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/sampling/kernels.h"

namespace pocket::cpu {
namespace {

constexpr std::int64_t kBlock = 1024;

std::int64_t size_of(std::span<const float> logits) { return static_cast<std::int64_t>(logits.size()); }

bool in_row(std::int32_t id, std::span<const float> logits) { return id >= 0 && id < size_of(logits); }

// The order of results: larger logit, then lower id.
bool comes_before(const TokenLogit& a, const TokenLogit& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

}  // namespace

std::int32_t argmax(std::span<const float> logits) noexcept {
  const SamplingKernels& kernels = kernels_in_use<SamplingKernelsOf>();
  const float largest = kernels.largest(logits.data(), size_of(logits));
  if (largest == -INFINITY) return 0;
  return static_cast<std::int32_t>(kernels.find_at_least(logits.data(), size_of(logits), largest));
}

double log_sum_exp(std::span<const float> logits, float scale) noexcept {
  const SamplingKernels& kernels = kernels_in_use<SamplingKernelsOf>();
  const float largest = kernels.largest(logits.data(), size_of(logits));
  if (std::isinf(largest)) return largest;
  const float shift = scale * largest;
  double sum = 0.0;
  for (std::int64_t begin = 0; begin < size_of(logits); begin += kBlock) {
    sum += kernels.sum_exp(logits.data() + begin, std::min(kBlock, size_of(logits) - begin), scale, shift);
  }
  return shift + std::log(sum);
}

void top_logits(std::span<const float> logits, std::int64_t count, std::vector<TokenLogit>& out) {
  const SamplingKernels& kernels = kernels_in_use<SamplingKernelsOf>();
  out.clear();
  if (count <= 0) return;
  // A heap of the best so far with the worst of them on top; what cannot enter is not looked at one by one.
  float threshold = -INFINITY;
  TokenLogit found[kBlock];
  for (std::int64_t begin = 0; begin < size_of(logits); begin += kBlock) {
    const std::int64_t num_found =
        kernels.collect_at_least(logits.data() + begin, std::min(kBlock, size_of(logits) - begin), threshold,
                                 static_cast<std::int32_t>(begin), found);
    for (std::int64_t i = 0; i < num_found; ++i) {
      if (static_cast<std::int64_t>(out.size()) < count) {
        out.push_back(found[i]);
        std::push_heap(out.begin(), out.end(), comes_before);
      } else if (comes_before(found[i], out.front())) {
        std::pop_heap(out.begin(), out.end(), comes_before);
        out.back() = found[i];
        std::push_heap(out.begin(), out.end(), comes_before);
      }
    }
    if (static_cast<std::int64_t>(out.size()) == count) threshold = out.front().logit;
  }
  std::sort_heap(out.begin(), out.end(), comes_before);
}

bool collect_at_least(std::span<const float> logits, float threshold, std::int64_t max_count,
                      std::vector<TokenLogit>& out) {
  const SamplingKernels& kernels = kernels_in_use<SamplingKernelsOf>();
  out.clear();
  TokenLogit found[kBlock];
  for (std::int64_t begin = 0; begin < size_of(logits); begin += kBlock) {
    const std::int64_t num_found =
        kernels.collect_at_least(logits.data() + begin, std::min(kBlock, size_of(logits) - begin), threshold,
                                 static_cast<std::int32_t>(begin), found);
    const std::int64_t room = max_count > 0 ? max_count - static_cast<std::int64_t>(out.size()) : num_found;
    out.insert(out.end(), found, found + std::min(room, num_found));
    if (num_found > room) return false;
  }
  return true;
}

std::int32_t draw(std::span<const float> logits, float scale, double uniform) noexcept {
  const SamplingKernels& kernels = kernels_in_use<SamplingKernelsOf>();
  const float largest = kernels.largest(logits.data(), size_of(logits));
  if (std::isinf(largest)) return argmax(logits);
  const float shift = scale * largest;
  const auto block_sum = [&](std::int64_t begin) -> double {
    return kernels.sum_exp(logits.data() + begin, std::min(kBlock, size_of(logits) - begin), scale, shift);
  };
  double total = 0.0;
  for (std::int64_t begin = 0; begin < size_of(logits); begin += kBlock) total += block_sum(begin);
  if (!(total > 0.0)) return argmax(logits);
  const double target = uniform * total;
  double before = 0.0;
  std::int64_t block = 0;  // the one that crosses the target; the last that adds something if rounding leaves none
  double before_block = 0.0;
  for (std::int64_t begin = 0; begin < size_of(logits); begin += kBlock) {
    const double sum = block_sum(begin);
    if (sum > 0.0) {
      block = begin;
      before_block = before;
    }
    before += sum;
    if (before > target) break;
  }
  float exponentials[kBlock];
  const std::int64_t count = std::min(kBlock, size_of(logits) - block);
  kernels.exponentials(logits.data() + block, count, scale, shift, exponentials);
  double cumulative = before_block;
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!(exponentials[i] > 0.0f)) continue;
    last = i;
    cumulative += exponentials[i];
    if (cumulative > target) break;
  }
  return static_cast<std::int32_t>(block + last);
}

void mask_disallowed(std::span<const std::uint32_t> words, std::span<float> logits) noexcept {
  kernels_in_use<SamplingKernelsOf>().mask_disallowed(words.data(), static_cast<std::int64_t>(words.size()),
                                                      size_of(logits), logits.data());
}

void penalize(const Penalties& penalties, std::span<const SeenToken> seen, std::span<float> logits) noexcept {
  for (const SeenToken& token : seen) {
    if (!in_row(token.id, logits)) continue;
    float& logit = logits[static_cast<std::size_t>(token.id)];
    const float repetition = penalties.repetition;
    if (repetition != 1.0f) logit = logit > 0.0f ? logit / repetition : logit * repetition;
    if (token.num_generated <= 0) continue;
    logit -= static_cast<float>(token.num_generated) * penalties.frequency;
    logit -= penalties.presence;
  }
}

void add_bias(std::span<const std::pair<std::int32_t, float>> bias, std::span<float> logits) noexcept {
  for (const auto& [id, value] : bias) {
    if (in_row(id, logits)) logits[static_cast<std::size_t>(id)] += value;
  }
}

void forbid(std::span<const std::int32_t> ids, std::span<float> logits) noexcept {
  for (const std::int32_t id : ids) {
    if (in_row(id, logits)) logits[static_cast<std::size_t>(id)] = -INFINITY;
  }
}

}  // namespace pocket::cpu
