// The passes over a row of logits, for any instruction set's Floats V.
#include "kernels/cpu/sampling/kernels.h"

#include <cstdint>

#include "kernels/cpu/simd/vector_math.h"
#include POCKET_SIMD_HEADER

namespace pocket::cpu {

template <class V>
struct SamplingInner {
  static constexpr float kInfinity = __builtin_inff();

  // Lanes past `count` are -inf.
  static V load_padded(const float* p, std::int64_t count) noexcept {
    if (count >= V::kCount) return V::load(p);
    const int n = static_cast<int>(count);
    return V::select(V::range(0, n), V::load_first(p, n), V::broadcast(-kInfinity));
  }

  static float largest(const float* logits, std::int64_t count) noexcept {
    constexpr int kChains = 4;
    V best[kChains];
    for (V& one : best) one = V::broadcast(-kInfinity);
    std::int64_t i = 0;
    for (; i + kChains * V::kCount <= count; i += kChains * V::kCount) {
#pragma GCC unroll 4
      for (int chain = 0; chain < kChains; ++chain) {
        best[chain] = V::max(V::load(logits + i + chain * V::kCount), best[chain]);  // this order passes over NaN
      }
    }
    for (; i < count; i += V::kCount) best[0] = V::max(load_padded(logits + i, count - i), best[0]);
    return V::max(V::max(best[0], best[1]), V::max(best[2], best[3])).largest();
  }

  static std::uint32_t bits_at_least(const float* logits, std::int64_t count, V threshold) noexcept {
    const std::uint32_t bits = V::bits(V::at_least(load_padded(logits, count), threshold));
    return count >= V::kCount ? bits : bits & ((1u << count) - 1u);
  }

  static std::int64_t find_at_least(const float* logits, std::int64_t count, float threshold) noexcept {
    for (std::int64_t i = 0; i < count; i += V::kCount) {
      const std::uint32_t bits = bits_at_least(logits + i, count - i, V::broadcast(threshold));
      if (bits != 0) return i + __builtin_ctz(bits);
    }
    return count;
  }

  static std::int64_t collect_at_least(const float* logits, std::int64_t count, float threshold, std::int32_t first_id,
                                       TokenLogit* out) noexcept {
    std::int64_t num_found = 0;
    for (std::int64_t i = 0; i < count; i += V::kCount) {
      std::uint32_t bits = bits_at_least(logits + i, count - i, V::broadcast(threshold));
      for (; bits != 0; bits &= bits - 1) {
        const std::int64_t at = i + __builtin_ctz(bits);
        out[num_found].id = first_id + static_cast<std::int32_t>(at);
        out[num_found].logit = logits[at];
        ++num_found;
      }
    }
    return num_found;
  }

  // NaN counts as -inf: 0.
  static V exponential(const float* logits, std::int64_t count, V scale, V shift) noexcept {
    const V x = V::max(load_padded(logits, count), V::broadcast(-kInfinity));
    return exp(x * scale - shift);
  }

  static float sum_exp(const float* logits, std::int64_t count, float scale, float shift) noexcept {
    V sum = V::zero();
    for (std::int64_t i = 0; i < count; i += V::kCount) {
      sum = sum + exponential(logits + i, count - i, V::broadcast(scale), V::broadcast(shift));
    }
    return sum.sum();
  }

  static void exponentials(const float* logits, std::int64_t count, float scale, float shift, float* out) noexcept {
    for (std::int64_t i = 0; i < count; i += V::kCount) {
      store_part(exponential(logits + i, count - i, V::broadcast(scale), V::broadcast(shift)), out + i, count - i);
    }
  }

  static void mask_disallowed(const std::uint32_t* words, std::int64_t num_words, std::int64_t count,
                              float* logits) noexcept {
    static_assert(V::kCount == 16);
    const V never = V::broadcast(-kInfinity);
    for (std::int64_t i = 0; i < count; i += V::kCount) {
      const std::int64_t word = i / 32;
      const std::uint32_t bits = word < num_words ? words[word] >> (i % 32) : 0u;
      const std::int64_t left = count - i;
      if (left >= V::kCount) {
        if ((bits & 0xFFFFu) != 0xFFFFu) V::select(V::from_bits(bits), V::load(logits + i), never).store(logits + i);
      } else {
        const int n = static_cast<int>(left);
        V::select(V::from_bits(bits), V::load_first(logits + i, n), never).store_first(logits + i, n);
      }
    }
  }
};

template <class V>
const SamplingKernels& SamplingKernelsOf<V>::table() noexcept {
  using Inner = SamplingInner<V>;
  static constexpr SamplingKernels kTable{Inner::largest, Inner::find_at_least, Inner::collect_at_least,
                                          Inner::sum_exp, Inner::exponentials,  Inner::mask_disallowed};
  return kTable;
}

template struct SamplingKernelsOf<POCKET_SIMD::Floats>;

}  // namespace pocket::cpu
