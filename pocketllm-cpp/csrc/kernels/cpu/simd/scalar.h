// Vectors of sixteen lanes in plain C++: what the types of every instruction set do, and what every CPU runs.
//
// A set's header has the same four types, so that an operation is written once, as a template over Floats, and gives the
// same bits on every set that fuses products. Each set has a namespace of its own: an inline function that is compiled
// with the options of two sets must not be merged into one.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "core/half.h"

namespace pocket::cpu::scalar {

// Out with element i = function(i). Not inlined: the products unroll so much that a compiler would drown in its loops.
template <class Out, class Function>
[[gnu::noinline]] Out each(Function function) {
  Out out;
  for (std::size_t i = 0; i < std::size(out.v); ++i) {
    out.v[i] = static_cast<std::remove_reference_t<decltype(out.v[i])>>(function(i));
  }
  return out;
}

template <class T>
T read(const void* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// Four signed bytes, which every lane has.
struct Quad {
  std::int8_t v[4];

  static Quad load(const std::int8_t* p) noexcept { return read<Quad>(p); }
};

struct Bytes;

// Sixteen 32-bit integers.
struct Ints {
  // Whether `dot` takes bytes above 127 as they are. Where it does not, it takes wide codes as code - kWideOffset.
  static constexpr bool kUnsignedDot = false;
  // Whether the sum waits several cycles for each `dot`, so that two sums in turn are faster than one.
  static constexpr bool kSlowDot = false;
  static constexpr int kWideOffset = 0;
  // Rows times two strips whose accumulators fit the registers (linear/tiles.h).
  static constexpr int kTileRows = 2;

  std::int32_t v[16];

  static Ints broadcast(std::int32_t x) noexcept {
    return each<Ints>([=](std::size_t) { return x; });
  }
  friend Ints operator+(const Ints& a, const Ints& b) noexcept {
    return each<Ints>([&](std::size_t i) { return a.v[i] + b.v[i]; });
  }
  // In each lane: sum + the lane's four bytes times the quad, exactly. kWide: some bytes may be above 127.
  // Sets whose kUnsignedDot is true also have `sixteenth`, which divides by 16, and Bytes::high_nibbles_in_place.
  template <bool kWide>
  static Ints dot(const Ints& sum, const Bytes& codes, const Quad& quad) noexcept;
};

// Sixty-four unsigned bytes: four in each lane.
struct Bytes {
  std::uint8_t v[64];

  static Bytes load(const std::byte* p) noexcept { return read<Bytes>(p); }
  void store(std::byte* p) const noexcept { std::memcpy(p, v, sizeof v); }
  Bytes low_nibbles() const noexcept {
    return each<Bytes>([&](std::size_t i) { return v[i] & 15; });
  }
  Bytes high_nibbles() const noexcept {
    return each<Bytes>([&](std::size_t i) { return v[i] >> 4; });
  }
  // Each byte is below 16 and becomes that element of the table.
  Bytes look_up(const std::uint8_t (&table)[16]) const noexcept {
    return each<Bytes>([&](std::size_t i) { return table[v[i]]; });
  }
  // Bits 2 * kField and the next one.
  template <int kField>
  Bytes bit_pair() const noexcept {
    return each<Bytes>([&](std::size_t i) { return (v[i] >> (2 * kField)) & 3; });
  }
  // With that bit pair of `pairs` as bits 4 and 5.
  template <int kField>
  Bytes or_upper_pair(const Bytes& pairs) const noexcept {
    return each<Bytes>([&](std::size_t i) { return v[i] | (((pairs.v[i] >> (2 * kField)) & 3) << 4); });
  }
  // With kValue in the bytes whose bit of the 64 at `plane` is set.
  template <int kValue>
  Bytes or_plane(const std::byte* plane) const noexcept {
    const auto bits = read<std::uint64_t>(plane);
    return each<Bytes>([&](std::size_t i) { return v[i] | (((bits >> i) & 1) * kValue); });
  }
  // Byte kByte of each lane.
  template <int kByte>
  Ints byte_of_lanes() const noexcept {
    return each<Ints>([&](std::size_t i) { return v[4 * i + kByte]; });
  }
};

template <bool kWide>
inline Ints Ints::dot(const Ints& sum, const Bytes& codes, const Quad& quad) noexcept {
  return each<Ints>([&](std::size_t i) {
    std::int32_t lane = sum.v[i];
    for (std::size_t j = 0; j < 4; ++j) lane += codes.v[4 * i + j] * quad.v[j];
    return lane;
  });
}

// Sixteen floats.
struct Floats {
  static constexpr int kCount = 16;
  // Accumulators that fit the registers: kTileRows rows of kTileColumns vectors (product_tile.h).
  static constexpr int kTileRows = 2;
  static constexpr int kTileColumns = 2;
  // The same for stored weights, and for one row of them (linear/float_tiles.h).
  static constexpr int kWeightTileColumns = 2;
  static constexpr int kRowColumns = 2;

  using Ints = scalar::Ints;
  using Bytes = scalar::Bytes;
  using Quad = scalar::Quad;
  struct Mask {
    bool v[kCount];
  };

  float v[kCount];

  static Floats broadcast(float x) noexcept {
    Floats y;
    for (float& lane : y.v) lane = x;
    return y;
  }
  static Floats zero() noexcept { return broadcast(0.0f); }
  static Floats load(const float* p) noexcept {
    Floats y;
    for (int i = 0; i < kCount; ++i) y.v[i] = p[i];
    return y;
  }
  // The first n lanes, others zero.
  static Floats load_first(const float* p, int n) noexcept {
    Floats y;
    for (int i = 0; i < kCount; ++i) y.v[i] = i < n ? p[i] : 0.0f;
    return y;
  }
  static Floats load(const std::uint16_t* p) noexcept {  // F16
    Floats y;
    for (int i = 0; i < kCount; ++i) y.v[i] = half_to_float(p[i]);
    return y;
  }
  static Floats load(const std::int8_t* p) noexcept {
    Floats y;
    for (int i = 0; i < kCount; ++i) y.v[i] = static_cast<float>(p[i]);
    return y;
  }
  static Floats load_bfloat(const std::byte* p) noexcept {
    return each<Floats>([=](std::size_t i) { return bfloat_to_float(read<std::uint16_t>(p + 2 * i)); });
  }
  static Floats load_e4m3(const std::byte* p) noexcept {
    return each<Floats>([=](std::size_t i) { return e4m3_to_float(static_cast<std::uint8_t>(p[i])); });
  }
  static Floats bit_cast(const Ints& x) noexcept { return std::bit_cast<Floats>(x); }
  static Floats convert(const Ints& x) noexcept {
    return each<Floats>([&](std::size_t i) { return static_cast<float>(x.v[i]); });
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
  // Rounds to nearest even, in [-127, 127] but for NaN; returns the sum of the codes.
  std::int32_t store_codes(std::int8_t* p) const noexcept {
    std::int32_t sum = 0;
    for (int i = 0; i < kCount; ++i) {
      p[i] = static_cast<std::int8_t>(v[i] == v[i] ? std::nearbyint(v[i]) : 0.0f);
      sum += p[i];
    }
    return sum;
  }

  friend Floats operator+(Floats a, Floats b) noexcept {
    for (int i = 0; i < kCount; ++i) a.v[i] += b.v[i];
    return a;
  }
  friend Floats operator-(Floats a, Floats b) noexcept {
    for (int i = 0; i < kCount; ++i) a.v[i] -= b.v[i];
    return a;
  }
  friend Floats operator*(Floats a, Floats b) noexcept {
    for (int i = 0; i < kCount; ++i) a.v[i] *= b.v[i];
    return a;
  }
  friend Floats operator/(Floats a, Floats b) noexcept {
    for (int i = 0; i < kCount; ++i) a.v[i] /= b.v[i];
    return a;
  }
  // a * b + c, rounded once where the set has an instruction for it; plain C++ rounds twice, and is quick.
  static Floats mul_add(Floats a, Floats b, Floats c) noexcept { return a * b + c; }
  // c - a * b, as mul_add.
  static Floats neg_mul_add(Floats a, Floats b, Floats c) noexcept { return c - a * b; }
  // a * b + c, rounded once in every set.
  static Floats fma(const Floats& a, const Floats& b, const Floats& c) noexcept {
    return each<Floats>([&](std::size_t i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  // NaN in b is the result; NaN in a is passed over.
  static Floats max(Floats a, Floats b) noexcept {
    for (int i = 0; i < kCount; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
  }
  static Floats min(Floats a, Floats b) noexcept {
    for (int i = 0; i < kCount; ++i) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return a;
  }
  Floats abs() const noexcept {
    Floats y;
    for (int i = 0; i < kCount; ++i) y.v[i] = v[i] < 0.0f ? -v[i] : v[i];
    return y;
  }
  // To the nearest integer, ties to even, for |x| < 2^22.
  Floats round() const noexcept {
    constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
    Floats y;
    for (int i = 0; i < kCount; ++i) y.v[i] = (v[i] + kShift) - kShift;
    return y;
  }
  // this * 2^n for integers n in [-250, 250]; overflows to infinity, underflows gradually.
  Floats times_power(Floats n) const noexcept {
    Floats y;
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
  static Mask less(Floats a, Floats b) noexcept {  // false for NaN
    Mask mask;
    for (int i = 0; i < kCount; ++i) mask.v[i] = a.v[i] < b.v[i];
    return mask;
  }
  static Mask at_least(Floats a, Floats b) noexcept {  // false for NaN
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
  static Floats select(Mask mask, Floats yes, Floats no) noexcept {
    for (int i = 0; i < kCount; ++i) yes.v[i] = mask.v[i] ? yes.v[i] : no.v[i];
    return yes;
  }

  // Halves are folded onto each other: 8, 4, 2, 1.
  float sum() const noexcept {
    Floats y = *this;
    for (int n = kCount / 2; n > 0; n /= 2) {
      for (int i = 0; i < n; ++i) y.v[i] += y.v[i + n];
    }
    return y.v[0];
  }
  float largest() const noexcept {
    Floats y = *this;
    for (int n = kCount / 2; n > 0; n /= 2) {
      for (int i = 0; i < n; ++i) y.v[i] = y.v[i] > y.v[i + n] ? y.v[i] : y.v[i + n];
    }
    return y.v[0];
  }

  // Of both, by their bits: larger than infinity when a lane is NaN.
  static float largest_magnitude(const Floats& a, const Floats& b) noexcept {
    std::uint32_t largest = 0;
    for (int i = 0; i < kCount; ++i) {
      largest = std::max(largest, std::bit_cast<std::uint32_t>(a.v[i]) & 0x7FFFFFFFu);
      largest = std::max(largest, std::bit_cast<std::uint32_t>(b.v[i]) & 0x7FFFFFFFu);
    }
    return std::bit_cast<float>(largest);
  }

  // Thirty-two floats of pairs (even, odd): load and store them apart.
  static void load_pairs(const float* p, Floats& even, Floats& odd) noexcept {
    for (int i = 0; i < kCount; ++i) {
      even.v[i] = p[2 * i];
      odd.v[i] = p[2 * i + 1];
    }
  }
  static void store_pairs(float* p, Floats even, Floats odd) noexcept {
    for (int i = 0; i < kCount; ++i) {
      p[2 * i] = even.v[i];
      p[2 * i + 1] = odd.v[i];
    }
  }

  static void prefetch(const void*) noexcept {}
};

}  // namespace pocket::cpu::scalar
