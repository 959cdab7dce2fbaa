// Sixteen floats in plain C++: what every instruction set's Lanes does, and what runs where there is none.
//
// Lanes types have the same members, so that an operation is written once as a template over them. They live in a
// namespace per instruction set, since the same inline function compiled with two sets of flags must not be merged.
#pragma once

#include <cstdint>

#include "core/half.h"

namespace pocket::scalar {

struct Lanes {
  static constexpr int kCount = 16;
  // Accumulators that fit the registers: kTileRows rows of kTileColumns Lanes (kernels/cpu/simd/product_tile.h).
  static constexpr int kTileRows = 2;
  static constexpr int kTileColumns = 2;

  float v[kCount];

  struct Mask {
    bool v[kCount];
  };

  static Lanes broadcast(float x) noexcept {
    Lanes y;
    for (float& lane : y.v) lane = x;
    return y;
  }
  static Lanes zero() noexcept { return broadcast(0.0f); }
  static Lanes load(const float* p) noexcept {
    Lanes y;
    for (int i = 0; i < kCount; ++i) y.v[i] = p[i];
    return y;
  }
  // The first n lanes, others zero.
  static Lanes load_first(const float* p, int n) noexcept {
    Lanes y;
    for (int i = 0; i < kCount; ++i) y.v[i] = i < n ? p[i] : 0.0f;
    return y;
  }
  static Lanes load(const std::uint16_t* p) noexcept {  // F16
    Lanes y;
    for (int i = 0; i < kCount; ++i) y.v[i] = half_to_float(p[i]);
    return y;
  }
  static Lanes load(const std::int8_t* p) noexcept {
    Lanes y;
    for (int i = 0; i < kCount; ++i) y.v[i] = static_cast<float>(p[i]);
    return y;
  }
  void store(float* p) const noexcept {
    for (int i = 0; i < kCount; ++i) p[i] = v[i];
  }
  void store_first(float* p, int n) const noexcept {
    for (int i = 0; i < n; ++i) p[i] = v[i];
  }
  void store(std::uint16_t* p) const noexcept {  // F16, to nearest even
    for (int i = 0; i < kCount; ++i) p[i] = float_to_half(v[i]);
  }
  // Lanes must be integers in [-128, 127]; what NaN becomes is not defined.
  void store(std::int8_t* p) const noexcept {
    for (int i = 0; i < kCount; ++i) p[i] = v[i] == v[i] ? static_cast<std::int8_t>(v[i]) : std::int8_t{0};
  }

  friend Lanes operator+(Lanes a, Lanes b) noexcept {
    for (int i = 0; i < kCount; ++i) a.v[i] += b.v[i];
    return a;
  }
  friend Lanes operator-(Lanes a, Lanes b) noexcept {
    for (int i = 0; i < kCount; ++i) a.v[i] -= b.v[i];
    return a;
  }
  friend Lanes operator*(Lanes a, Lanes b) noexcept {
    for (int i = 0; i < kCount; ++i) a.v[i] *= b.v[i];
    return a;
  }
  friend Lanes operator/(Lanes a, Lanes b) noexcept {
    for (int i = 0; i < kCount; ++i) a.v[i] /= b.v[i];
    return a;
  }
  // a * b + c, rounded once where there is an instruction for it (here there is none).
  static Lanes fma(Lanes a, Lanes b, Lanes c) noexcept { return a * b + c; }
  // c - a * b.
  static Lanes fnma(Lanes a, Lanes b, Lanes c) noexcept { return c - a * b; }
  // NaN in b is the result; NaN in a is passed over.
  static Lanes max(Lanes a, Lanes b) noexcept {
    for (int i = 0; i < kCount; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
  }
  static Lanes min(Lanes a, Lanes b) noexcept {
    for (int i = 0; i < kCount; ++i) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return a;
  }
  Lanes abs() const noexcept {
    Lanes y;
    for (int i = 0; i < kCount; ++i) y.v[i] = v[i] < 0.0f ? -v[i] : v[i];
    return y;
  }
  // To the nearest integer, ties to even, for |x| < 2^22.
  Lanes round() const noexcept {
    constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
    Lanes y;
    for (int i = 0; i < kCount; ++i) y.v[i] = (v[i] + kShift) - kShift;
    return y;
  }
  // this * 2^n for integers n in [-250, 250]; overflows to infinity, underflows gradually.
  Lanes times_power(Lanes n) const noexcept {
    Lanes y;
    for (int i = 0; i < kCount; ++i) {
      const auto power = static_cast<std::int32_t>(n.v[i] == n.v[i] ? n.v[i] : 0.0f);
      const std::int32_t half = power >> 1;
      y.v[i] = v[i] * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((power - half + 127) << 23);
    }
    return y;
  }

  // Lanes first <= i < end.
  static Mask range(int first, int end) noexcept {
    Mask mask;
    for (int i = 0; i < kCount; ++i) mask.v[i] = i >= first && i < end;
    return mask;
  }
  static Mask less(Lanes a, Lanes b) noexcept {  // false for NaN
    Mask mask;
    for (int i = 0; i < kCount; ++i) mask.v[i] = a.v[i] < b.v[i];
    return mask;
  }
  static Mask at_least(Lanes a, Lanes b) noexcept {  // false for NaN
    Mask mask;
    for (int i = 0; i < kCount; ++i) mask.v[i] = a.v[i] >= b.v[i];
    return mask;
  }
  static Mask from_bits(std::uint32_t bits) noexcept {  // lane i takes bit i
    Mask mask;
    for (int i = 0; i < kCount; ++i) mask.v[i] = ((bits >> i) & 1u) != 0;
    return mask;
  }
  static std::uint32_t bits(Mask mask) noexcept {
    std::uint32_t all = 0;
    for (int i = 0; i < kCount; ++i) all |= static_cast<std::uint32_t>(mask.v[i]) << i;
    return all;
  }
  static Lanes select(Mask mask, Lanes yes, Lanes no) noexcept {
    for (int i = 0; i < kCount; ++i) yes.v[i] = mask.v[i] ? yes.v[i] : no.v[i];
    return yes;
  }

  // Halves are folded onto each other: 8, 4, 2, 1.
  float sum() const noexcept {
    Lanes y = *this;
    for (int n = kCount / 2; n > 0; n /= 2) {
      for (int i = 0; i < n; ++i) y.v[i] += y.v[i + n];
    }
    return y.v[0];
  }
  float largest() const noexcept {
    Lanes y = *this;
    for (int n = kCount / 2; n > 0; n /= 2) {
      for (int i = 0; i < n; ++i) y.v[i] = y.v[i] > y.v[i + n] ? y.v[i] : y.v[i + n];
    }
    return y.v[0];
  }

  // Thirty-two floats of pairs (even, odd): load and store them apart.
  static void load_pairs(const float* p, Lanes& even, Lanes& odd) noexcept {
    for (int i = 0; i < kCount; ++i) {
      even.v[i] = p[2 * i];
      odd.v[i] = p[2 * i + 1];
    }
  }
  static void store_pairs(float* p, Lanes even, Lanes odd) noexcept {
    for (int i = 0; i < kCount; ++i) {
      p[2 * i] = even.v[i];
      p[2 * i + 1] = odd.v[i];
    }
  }

  static void prefetch(const void*) noexcept {}
};

}  // namespace pocket::scalar
