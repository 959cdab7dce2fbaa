// The loops of the row-wise operations over any instruction set's Floats V.
#include "kernels/cpu/elementwise/kernels.h"

#include <cstdint>

#include "kernels/cpu/simd/vector_math.h"
#include POCKET_SIMD_HEADER

namespace pocket::cpu {

template <class V>
struct ElementwiseInner {
  // The squares go to 64 sums by column mod 64, which are added in a fixed tree.
  static void rms_norm(const float* x, const float* weight, float eps, std::int64_t num_columns, float* y) noexcept {
    constexpr std::int64_t kStep = 4 * V::kCount;
    V sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    for (std::int64_t i = 0; i < num_columns; i += kStep) {
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part) {
        const std::int64_t at = i + part * V::kCount;
        if (at >= num_columns) continue;
        const V values = load_part<V>(x + at, num_columns - at);
        sums[part] = V::mul_add(values, values, sums[part]);
      }
    }
    const float sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])).sum();
    const V factor = V::broadcast(1.0f / __builtin_sqrtf(sum / static_cast<float>(num_columns) + eps));
    for (std::int64_t i = 0; i < num_columns; i += V::kCount) {
      const std::int64_t left = num_columns - i;
      store_part(load_part<V>(x + i, left) * factor * load_part<V>(weight + i, left), y + i, left);
    }
  }

  template <Gate kGate>
  static V activate(V x) noexcept {
    if constexpr (kGate == Gate::kSilu) return silu(x);
    if constexpr (kGate == Gate::kGeluTanh) return gelu_tanh(x);
    if constexpr (kGate == Gate::kSigmoid) return sigmoid(x);
  }

  template <Gate kGate>
  static void gated_by(const float* gate, const float* up, std::int64_t num_columns, float* y) noexcept {
    for (std::int64_t i = 0; i < num_columns; i += V::kCount) {
      const std::int64_t left = num_columns - i;
      store_part(activate<kGate>(load_part<V>(gate + i, left)) * load_part<V>(up + i, left), y + i, left);
    }
  }

  static void gated(Gate gate_kind, const float* gate, const float* up, std::int64_t num_columns, float* y) noexcept {
    switch (gate_kind) {
      case Gate::kSilu:
        return gated_by<Gate::kSilu>(gate, up, num_columns, y);
      case Gate::kGeluTanh:
        return gated_by<Gate::kGeluTanh>(gate, up, num_columns, y);
      case Gate::kSigmoid:
        return gated_by<Gate::kSigmoid>(gate, up, num_columns, y);
    }
  }

  // (x, y) becomes (x cos - y sin, y cos + x sin).
  static void turn(V cosine, V sine, V& x, V& y) noexcept {
    const V turned = V::neg_mul_add(y, sine, x * cosine);
    y = V::mul_add(x, sine, y * cosine);
    x = turned;
  }

  static void rotate_halves(const float* cosines, const float* sines, std::int64_t num_pairs, float* x) noexcept {
    for (std::int64_t i = 0; i < num_pairs; i += V::kCount) {
      const std::int64_t left = num_pairs - i;
      V first = load_part<V>(x + i, left);
      V second = load_part<V>(x + num_pairs + i, left);
      turn(load_part<V>(cosines + i, left), load_part<V>(sines + i, left), first, second);
      store_part(first, x + i, left);
      store_part(second, x + num_pairs + i, left);
    }
  }

  static void rotate_pairs(const float* cosines, const float* sines, std::int64_t num_pairs, float* x) noexcept {
    for (std::int64_t i = 0; i < num_pairs; i += V::kCount) {
      const std::int64_t left = num_pairs - i;
      const bool whole = left >= V::kCount;
      float last[2 * V::kCount];
      float* at = x + 2 * i;
      if (!whole) {
        for (std::int64_t j = 0; j < 2 * V::kCount; ++j) last[j] = j < 2 * left ? at[j] : 0.0f;
      }
      V first, second;
      V::load_pairs(whole ? at : last, first, second);
      turn(load_part<V>(cosines + i, left), load_part<V>(sines + i, left), first, second);
      V::store_pairs(whole ? at : last, first, second);
      if (!whole) {
        for (std::int64_t j = 0; j < 2 * left; ++j) at[j] = last[j];
      }
    }
  }

  static void rotate(RotaryStyle style, const float* cosines, const float* sines, std::int64_t num_pairs,
                     std::int64_t num_heads, std::int64_t head_dim, float* x) noexcept {
    for (std::int64_t head = 0; head < num_heads; ++head) {
      if (style == RotaryStyle::kHalves) {
        rotate_halves(cosines, sines, num_pairs, x + head * head_dim);
      } else {
        rotate_pairs(cosines, sines, num_pairs, x + head * head_dim);
      }
    }
  }

  static void scale(float factor, std::int64_t count, float* x) noexcept {
    for (std::int64_t i = 0; i < count; i += V::kCount) {
      store_part(load_part<V>(x + i, count - i) * V::broadcast(factor), x + i, count - i);
    }
  }

  static void add(const float* x, std::int64_t count, float* y) noexcept {
    for (std::int64_t i = 0; i < count; i += V::kCount) {
      store_part(load_part<V>(y + i, count - i) + load_part<V>(x + i, count - i), y + i, count - i);
    }
  }
};

template <class V>
const ElementwiseKernels& ElementwiseKernelsOf<V>::table() noexcept {
  using Inner = ElementwiseInner<V>;
  static constexpr ElementwiseKernels kTable{Inner::rms_norm, Inner::gated, Inner::rotate, Inner::scale, Inner::add};
  return kTable;
}

template struct ElementwiseKernelsOf<POCKET_SIMD::Floats>;

}  // namespace pocket::cpu
