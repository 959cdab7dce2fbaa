// Lanes in four NEON registers. For files named *_neon.cpp alone; members are described in vector_math_scalar.h.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace pocket::neon {

struct Lanes {
  static constexpr int kCount = 16;
  static constexpr int kTileRows = 3;
  static constexpr int kTileColumns = 2;

  float32x4_t v[4];

  struct Mask {
    uint32x4_t v[4];  // all bits of a lane, or none
  };

  static Lanes broadcast(float x) noexcept {
    const float32x4_t all = vdupq_n_f32(x);
    return {{all, all, all, all}};
  }
  static Lanes zero() noexcept { return broadcast(0.0f); }
  static Lanes load(const float* p) noexcept {
    return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
  }
  static Lanes load_first(const float* p, int n) noexcept {
    float lanes[kCount];
    for (int i = 0; i < kCount; ++i) lanes[i] = i < n ? p[i] : 0.0f;
    return load(lanes);
  }
  static Lanes load(const std::uint16_t* p) noexcept {
    Lanes y;
    for (int i = 0; i < 4; ++i) y.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    return y;
  }
  static Lanes load(const std::int8_t* p) noexcept {
    const int8x16_t bytes = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
    const int16x8_t high = vmovl_s8(vget_high_s8(bytes));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
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

  friend Lanes operator+(Lanes a, Lanes b) noexcept {
    for (int i = 0; i < 4; ++i) a.v[i] = vaddq_f32(a.v[i], b.v[i]);
    return a;
  }
  friend Lanes operator-(Lanes a, Lanes b) noexcept {
    for (int i = 0; i < 4; ++i) a.v[i] = vsubq_f32(a.v[i], b.v[i]);
    return a;
  }
  friend Lanes operator*(Lanes a, Lanes b) noexcept {
    for (int i = 0; i < 4; ++i) a.v[i] = vmulq_f32(a.v[i], b.v[i]);
    return a;
  }
  friend Lanes operator/(Lanes a, Lanes b) noexcept {
    for (int i = 0; i < 4; ++i) a.v[i] = vdivq_f32(a.v[i], b.v[i]);
    return a;
  }
  static Lanes fma(Lanes a, Lanes b, Lanes c) noexcept {
    for (int i = 0; i < 4; ++i) c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
    return c;
  }
  static Lanes fnma(Lanes a, Lanes b, Lanes c) noexcept {
    for (int i = 0; i < 4; ++i) c.v[i] = vfmsq_f32(c.v[i], a.v[i], b.v[i]);
    return c;
  }
  // By comparison: NEON's own maximum would keep NaN of either side.
  static Lanes max(Lanes a, Lanes b) noexcept {
    for (int i = 0; i < 4; ++i) a.v[i] = vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
    return a;
  }
  static Lanes min(Lanes a, Lanes b) noexcept {
    for (int i = 0; i < 4; ++i) a.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
    return a;
  }
  Lanes abs() const noexcept {
    Lanes y;
    for (int i = 0; i < 4; ++i) y.v[i] = vabsq_f32(v[i]);
    return y;
  }
  Lanes round() const noexcept {
    Lanes y;
    for (int i = 0; i < 4; ++i) y.v[i] = vrndnq_f32(v[i]);
    return y;
  }
  Lanes times_power(Lanes n) const noexcept {
    const int32x4_t bias = vdupq_n_s32(127);
    Lanes y;
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
  static Mask less(Lanes a, Lanes b) noexcept {
    Mask mask;
    for (int i = 0; i < 4; ++i) mask.v[i] = vcltq_f32(a.v[i], b.v[i]);
    return mask;
  }
  static Mask at_least(Lanes a, Lanes b) noexcept {
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
  static Lanes select(Mask mask, Lanes yes, Lanes no) noexcept {
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

  static void load_pairs(const float* p, Lanes& even, Lanes& odd) noexcept {
    for (int i = 0; i < 4; ++i) {
      const float32x4x2_t pair = vld2q_f32(p + 8 * i);
      even.v[i] = pair.val[0];
      odd.v[i] = pair.val[1];
    }
  }
  static void store_pairs(float* p, Lanes even, Lanes odd) noexcept {
    for (int i = 0; i < 4; ++i) vst2q_f32(p + 8 * i, float32x4x2_t{{even.v[i], odd.v[i]}});
  }

  static void prefetch(const void* p) noexcept { __builtin_prefetch(p); }

 private:
  static Mask load_mask(const std::uint32_t* lanes) noexcept {
    return {{vld1q_u32(lanes), vld1q_u32(lanes + 4), vld1q_u32(lanes + 8), vld1q_u32(lanes + 12)}};
  }
};

}  // namespace pocket::neon
