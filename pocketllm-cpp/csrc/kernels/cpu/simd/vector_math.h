// Functions of sixteen floats, for any instruction set's Floats V (scalar.h describes them).
#pragma once

#include <cstdint>

namespace pocket::cpu {

// Up to sixteen floats from p on; what is missing of them is zero.
template <class V>
inline V load_part(const float* p, std::int64_t count) noexcept {
  return count >= V::kCount ? V::load(p) : V::load_first(p, static_cast<int>(count));
}

// The first `count` of x, sixteen at most.
template <class V>
inline void store_part(V x, float* p, std::int64_t count) noexcept {
  if (count >= V::kCount) {
    x.store(p);
  } else {
    x.store_first(p, static_cast<int>(count));
  }
}

// e^r for |r| <= ln(2) / 2, relative error 4e-9 before rounding: 1 + r + r^2 q(r), so that e^0 is exactly 1.
// The coefficients of q are a minimax fit of the relative error.
template <class V>
inline V exp_near_zero(V r) noexcept {
  V q = V::broadcast(0x1.6a2352p-10f);
  q = V::mul_add(q, r, V::broadcast(0x1.123a6cp-7f));
  q = V::mul_add(q, r, V::broadcast(0x1.5558f4p-5f));
  q = V::mul_add(q, r, V::broadcast(0x1.555490p-3f));
  q = V::mul_add(q, r, V::broadcast(0x1.fffffcp-2f));
  const V one = V::broadcast(1.0f);
  return V::mul_add(V::mul_add(q, r, one), r, one);
}

// e^x for every x: within 2 ulp, infinity above 88.73, gradual underflow to 0, NaN for NaN.
template <class V>
inline V exp(V x) noexcept {
  x = V::max(V::broadcast(-110.0f), V::min(V::broadcast(100.0f), x));
  const V n = (x * V::broadcast(0x1.715476p+0f)).round();  // x / ln(2)
  V r = V::neg_mul_add(n, V::broadcast(0x1.62e400p-1f), x);       // ln(2) in two parts, the first exact times n
  r = V::neg_mul_add(n, V::broadcast(0x1.7f7d1cp-20f), r);
  return exp_near_zero(r).times_power(n);
}

// 2^x for x <= 0, within 2 ulp: a weight of a softmax. Below 2^-116 it is exactly 0, so that weights times
// half-precision values never underflow; NaN for NaN.
template <class V>
inline V softmax_weight(V x) noexcept {
  const V smallest = V::broadcast(-116.0f);
  const V y = V::max(smallest, x);
  const V n = y.round();
  const V weight = exp_near_zero((y - n) * V::broadcast(0x1.62e430p-1f)).times_power(n);
  return V::select(V::less(x, smallest), V::zero(), weight);
}

template <class V>
inline V sigmoid(V x) noexcept {
  const V one = V::broadcast(1.0f);
  return one / (one + exp(V::zero() - x));
}

// x / (1 + e^-x).
template <class V>
inline V silu(V x) noexcept {
  return x / (V::broadcast(1.0f) + exp(V::zero() - x));
}

// x / 2 (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3), and (1 + tanh(u)) / 2 = 1 / (1 + e^-2u).
template <class V>
inline V gelu_tanh(V x) noexcept {
  const V inner = V::mul_add(x * x, V::broadcast(0.044715f), V::broadcast(1.0f));
  const V minus_two_u = x * inner * V::broadcast(-1.5957691216057308f);
  return x / (V::broadcast(1.0f) + exp(minus_two_u));
}

}  // namespace pocket::cpu
