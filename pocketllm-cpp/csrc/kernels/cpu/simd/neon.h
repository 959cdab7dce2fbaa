// The vectors with NEON and its dot product extension: sixteen lanes are four registers. scalar.h describes the types
// and their members.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace pocket::cpu::neon {

// {{function(0), ..., function(3)}}, unrolled whatever the optimiser thinks of it.
template <class Out, class Function>
[[gnu::always_inline]] inline Out each(Function function) {
  return {{function(0), function(1), function(2), function(3)}};
}

inline const std::uint8_t* unsigned_of(const std::byte* p) noexcept { return reinterpret_cast<const std::uint8_t*>(p); }

struct Quad {
  int8x16_t v;

  static Quad load(const std::int8_t* p) noexcept {
    std::int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return {vreinterpretq_s8_s32(vdupq_n_s32(four))};
  }
};

struct Bytes;

struct Ints {
  // The byte product is signed, which 7-bit codes are anyway; wide codes are made so.
  static constexpr bool kUnsignedDot = false;
  static constexpr bool kSlowDot = true;
  static constexpr int kWideOffset = 128;
  static constexpr int kTileRows = 2;

  int32x4_t v[4];

  static Ints broadcast(std::int32_t x) noexcept {
    return each<Ints>([=](int) __attribute__((always_inline)) { return vdupq_n_s32(x); });
  }
  friend Ints operator+(Ints a, Ints b) noexcept {
    return each<Ints>([&](int i) __attribute__((always_inline)) { return vaddq_s32(a.v[i], b.v[i]); });
  }
  template <bool kWide>
  static Ints dot(Ints sum, Bytes codes, Quad quad) noexcept;
};

struct Bytes {
  uint8x16_t v[4];  // four lanes each

  static Bytes load(const std::byte* p) noexcept {
    return each<Bytes>([=](int i) __attribute__((always_inline)) { return vld1q_u8(unsigned_of(p) + 16 * i); });
  }
  void store(std::byte* p) const noexcept {
    for (int i = 0; i < 4; ++i) vst1q_u8(reinterpret_cast<std::uint8_t*>(p) + 16 * i, v[i]);
  }
  Bytes low_nibbles() const noexcept {
    return each<Bytes>([&](int i) __attribute__((always_inline)) { return vandq_u8(v[i], vdupq_n_u8(15)); });
  }
  Bytes high_nibbles() const noexcept {
    return each<Bytes>([&](int i) __attribute__((always_inline)) { return vshrq_n_u8(v[i], 4); });
  }
  Bytes look_up(const std::uint8_t (&table)[16]) const noexcept {
    const uint8x16_t values = vld1q_u8(table);
    return each<Bytes>([&](int i) __attribute__((always_inline)) { return vqtbl1q_u8(values, v[i]); });
  }
  template <int kField>
  Bytes bit_pair() const noexcept {
    return each<Bytes>([&](int i) __attribute__((always_inline)) { return pair<kField>(v[i]); });
  }
  template <int kField>
  Bytes or_upper_pair(Bytes pairs) const noexcept {
    return each<Bytes>([&](int i) __attribute__((always_inline)) {
      return vorrq_u8(v[i], vshlq_n_u8(pair<kField>(pairs.v[i]), 4));
    });
  }
  template <int kValue>
  Bytes or_plane(const std::byte* plane) const noexcept {
    const std::uint8_t bits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t bit_of = vld1q_u8(bits);
    return each<Bytes>([&](int i) __attribute__((always_inline)) {
      const std::uint8_t* two = unsigned_of(plane) + 2 * i;
      const uint8x16_t spread = vcombine_u8(vdup_n_u8(two[0]), vdup_n_u8(two[1]));
      return vorrq_u8(v[i], vandq_u8(vtstq_u8(spread, bit_of), vdupq_n_u8(kValue)));
    });
  }
  template <int kByte>
  Ints byte_of_lanes() const noexcept {
    return each<Ints>([&](int i) __attribute__((always_inline)) {
      const uint32x4_t lanes = vreinterpretq_u32_u8(v[i]);
      if constexpr (kByte == 0) {
        return vreinterpretq_s32_u32(vandq_u32(lanes, vdupq_n_u32(255)));
      } else {
        return vreinterpretq_s32_u32(vandq_u32(vshrq_n_u32(lanes, 8 * kByte), vdupq_n_u32(255)));
      }
    });
  }

 private:
  template <int kField>
  [[gnu::always_inline]] static inline uint8x16_t pair(uint8x16_t pairs) noexcept {
    if constexpr (kField == 0) {
      return vandq_u8(pairs, vdupq_n_u8(3));
    } else {
      return vandq_u8(vshrq_n_u8(pairs, 2 * kField), vdupq_n_u8(3));
    }
  }
};

template <bool kWide>
inline Ints Ints::dot(Ints sum, Bytes codes, Quad quad) noexcept {
  return each<Ints>([&](int i) __attribute__((always_inline)) {
    const uint8x16_t level = kWide ? veorq_u8(codes.v[i], vdupq_n_u8(0x80)) : codes.v[i];
    return vdotq_s32(sum.v[i], vreinterpretq_s8_u8(level), quad.v);
  });
}

struct Floats {
  static constexpr int kCount = 16;
  static constexpr int kTileRows = 3;
  static constexpr int kTileColumns = 2;
  static constexpr int kRowColumns = 2;
  static constexpr int kWeightTileColumns = 1;

  using Ints = neon::Ints;
  using Bytes = neon::Bytes;
  using Quad = neon::Quad;
  struct Mask {
    uint32x4_t v[4];  // all bits of a lane, or none
  };

  float32x4_t v[4];

  static Floats broadcast(float x) noexcept {
    const float32x4_t all = vdupq_n_f32(x);
    return {{all, all, all, all}};
  }
  static Floats zero() noexcept { return broadcast(0.0f); }
  static Floats load(const float* p) noexcept {
    return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
  }
  static Floats load_first(const float* p, int n) noexcept {
    float lanes[kCount];
    for (int i = 0; i < kCount; ++i) lanes[i] = i < n ? p[i] : 0.0f;
    return load(lanes);
  }
  static Floats load(const std::uint16_t* p) noexcept {
    Floats y;
    for (int i = 0; i < 4; ++i) y.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    return y;
  }
  static Floats load(const std::int8_t* p) noexcept {
    const int8x16_t bytes = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
    const int16x8_t high = vmovl_s8(vget_high_s8(bytes));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
  }
  static Floats load_bfloat(const std::byte* p) noexcept {
    return each<Floats>([=](int i) __attribute__((always_inline)) {
      return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(unsigned_of(p) + 8 * i)), 16));
    });
  }
  static Floats load_e4m3(const std::byte* p) noexcept {
    const uint8x16_t codes = vld1q_u8(unsigned_of(p));
    const uint16x8_t low = vmovl_u8(vget_low_u8(codes));
    const uint16x8_t high = vmovl_u8(vget_high_u8(codes));
    return {{e4m3(vmovl_u16(vget_low_u16(low))), e4m3(vmovl_u16(vget_high_u16(low))),
             e4m3(vmovl_u16(vget_low_u16(high))), e4m3(vmovl_u16(vget_high_u16(high)))}};
  }
  static Floats bit_cast(Ints x) noexcept {
    return each<Floats>([&](int i) __attribute__((always_inline)) { return vreinterpretq_f32_s32(x.v[i]); });
  }
  static Floats convert(Ints x) noexcept {
    return each<Floats>([&](int i) __attribute__((always_inline)) { return vcvtq_f32_s32(x.v[i]); });
  }
  void store(float* p) const noexcept {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, v[i]);
  }
  void store_first(float* p, int n) const noexcept {
    float lanes[kCount];
    store(lanes);
    for (int i = 0; i < n; ++i) p[i] = lanes[i];
  }
  void store(std::uint16_t* p) const noexcept {
    for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(v[i])));
  }
  void store(std::int8_t* p) const noexcept {
    const int16x8_t low = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(v[0])), vqmovn_s32(vcvtnq_s32_f32(v[1])));
    const int16x8_t high = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(v[2])), vqmovn_s32(vcvtnq_s32_f32(v[3])));
    vst1q_s8(p, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
  }
  std::int32_t store_codes(std::int8_t* p) const noexcept {
    store(p);
    return vaddvq_s32(vaddq_s32(vaddq_s32(vcvtnq_s32_f32(v[0]), vcvtnq_s32_f32(v[1])),
                                vaddq_s32(vcvtnq_s32_f32(v[2]), vcvtnq_s32_f32(v[3]))));
  }

  friend Floats operator+(Floats a, Floats b) noexcept {
    for (int i = 0; i < 4; ++i) a.v[i] = vaddq_f32(a.v[i], b.v[i]);
    return a;
  }
  friend Floats operator-(Floats a, Floats b) noexcept {
    for (int i = 0; i < 4; ++i) a.v[i] = vsubq_f32(a.v[i], b.v[i]);
    return a;
  }
  friend Floats operator*(Floats a, Floats b) noexcept {
    for (int i = 0; i < 4; ++i) a.v[i] = vmulq_f32(a.v[i], b.v[i]);
    return a;
  }
  friend Floats operator/(Floats a, Floats b) noexcept {
    for (int i = 0; i < 4; ++i) a.v[i] = vdivq_f32(a.v[i], b.v[i]);
    return a;
  }
  static Floats fma(Floats a, Floats b, Floats c) noexcept {
    for (int i = 0; i < 4; ++i) c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
    return c;
  }
  static Floats mul_add(Floats a, Floats b, Floats c) noexcept { return fma(a, b, c); }
  static Floats neg_mul_add(Floats a, Floats b, Floats c) noexcept {
    for (int i = 0; i < 4; ++i) c.v[i] = vfmsq_f32(c.v[i], a.v[i], b.v[i]);
    return c;
  }
  // By comparison: NEON's own maximum would keep NaN of either side.
  static Floats max(Floats a, Floats b) noexcept {
    for (int i = 0; i < 4; ++i) a.v[i] = vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
    return a;
  }
  static Floats min(Floats a, Floats b) noexcept {
    for (int i = 0; i < 4; ++i) a.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
    return a;
  }
  Floats abs() const noexcept {
    Floats y;
    for (int i = 0; i < 4; ++i) y.v[i] = vabsq_f32(v[i]);
    return y;
  }
  Floats round() const noexcept {
    Floats y;
    for (int i = 0; i < 4; ++i) y.v[i] = vrndnq_f32(v[i]);
    return y;
  }
  Floats times_power(Floats n) const noexcept {
    const int32x4_t bias = vdupq_n_s32(127);
    Floats y;
    for (int i = 0; i < 4; ++i) {
      const int32x4_t power = vcvtnq_s32_f32(n.v[i]);
      const int32x4_t half = vshrq_n_s32(power, 1);
      const int32x4_t rest = vsubq_s32(power, half);
      const float32x4_t first = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
      const float32x4_t second = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23));
      y.v[i] = vmulq_f32(vmulq_f32(v[i], first), second);
    }
    return y;
  }

  static Mask range(int first, int end) noexcept {
    std::uint32_t lanes[kCount];
    for (int i = 0; i < kCount; ++i) lanes[i] = i >= first && i < end ? 0xFFFFFFFFu : 0u;
    return load_mask(lanes);
  }
  static Mask less(Floats a, Floats b) noexcept {
    Mask mask;
    for (int i = 0; i < 4; ++i) mask.v[i] = vcltq_f32(a.v[i], b.v[i]);
    return mask;
  }
  static Mask at_least(Floats a, Floats b) noexcept {
    Mask mask;
    for (int i = 0; i < 4; ++i) mask.v[i] = vcgeq_f32(a.v[i], b.v[i]);
    return mask;
  }
  static Mask from_bits(std::uint32_t bits) noexcept {
    std::uint32_t lanes[kCount];
    for (int i = 0; i < kCount; ++i) lanes[i] = ((bits >> i) & 1u) != 0 ? 0xFFFFFFFFu : 0u;
    return load_mask(lanes);
  }
  static std::uint32_t bits(Mask mask) noexcept {
    const std::uint32_t weights[4] = {1, 2, 4, 8};
    std::uint32_t all = 0;
    for (int i = 0; i < 4; ++i) all |= vaddvq_u32(vandq_u32(mask.v[i], vld1q_u32(weights))) << (4 * i);
    return all;
  }
  static Floats select(Mask mask, Floats yes, Floats no) noexcept {
    for (int i = 0; i < 4; ++i) yes.v[i] = vbslq_f32(mask.v[i], yes.v[i], no.v[i]);
    return yes;
  }

  float sum() const noexcept {
    const float32x4_t four = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
  }
  float largest() const noexcept {
    const float32x4_t four = vmaxq_f32(vmaxq_f32(v[0], v[2]), vmaxq_f32(v[1], v[3]));
    return vmaxvq_f32(four);
  }

  static float largest_magnitude(Floats a, Floats b) noexcept {
    uint32x4_t largest = vdupq_n_u32(0);
    for (int i = 0; i < 4; ++i) {
      largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(a.v[i])));
      largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(b.v[i])));
    }
    return vgetq_lane_f32(vreinterpretq_f32_u32(vdupq_n_u32(vmaxvq_u32(largest))), 0);
  }

  static void load_pairs(const float* p, Floats& even, Floats& odd) noexcept {
    for (int i = 0; i < 4; ++i) {
      const float32x4x2_t pair = vld2q_f32(p + 8 * i);
      even.v[i] = pair.val[0];
      odd.v[i] = pair.val[1];
    }
  }
  static void store_pairs(float* p, Floats even, Floats odd) noexcept {
    for (int i = 0; i < 4; ++i) vst2q_f32(p + 8 * i, float32x4x2_t{{even.v[i], odd.v[i]}});
  }

  static void prefetch(const void* p) noexcept { __builtin_prefetch(p); }

 private:
  static float32x4_t e4m3(uint32x4_t codes) noexcept {
    const uint32x4_t magnitude = vandq_u32(codes, vdupq_n_u32(0x7F));
    // As the exponent and top mantissa bits of a float whose bias is 127 where the code's is 7: the factor makes up for
    // it, subnormal codes included.
    const float32x4_t value = vmulq_f32(vreinterpretq_f32_u32(vshlq_n_u32(magnitude, 20)), vdupq_n_f32(0x1p120f));
    const uint32x4_t nan = vceqq_u32(magnitude, vdupq_n_u32(0x7F));
    const uint32x4_t bits = vbslq_u32(nan, vdupq_n_u32(0x7FC00000), vreinterpretq_u32_f32(value));
    const uint32x4_t sign = vshlq_n_u32(vandq_u32(codes, vdupq_n_u32(0x80)), 24);
    return vreinterpretq_f32_u32(vorrq_u32(bits, sign));
  }
  static Mask load_mask(const std::uint32_t* lanes) noexcept {
    return {{vld1q_u32(lanes), vld1q_u32(lanes + 4), vld1q_u32(lanes + 8), vld1q_u32(lanes + 12)}};
  }
};

}  // namespace pocket::cpu::neon
