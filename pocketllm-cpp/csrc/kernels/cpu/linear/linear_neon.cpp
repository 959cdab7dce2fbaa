// The products with NEON and its dot product extension: 16 lanes are four registers. The byte product is signed, which
// 7-bit codes are anyway; wide codes are made so.
#include <arm_neon.h>

#include "kernels/cpu/linear/float_tiles.h"

namespace pocket {
namespace {

struct Neon {
  struct F { float32x4_t v[4]; };
  struct I { int32x4_t v[4]; };
  struct B { uint8x16_t v[4]; };  // four rows each
  using A = int8x16_t;

  static constexpr bool kUnsignedDot = false;
  static constexpr int kWideOffset = 128;
  static constexpr int kTileRows = 2;
  static constexpr int kFloatTileRows = 3;
  static constexpr int kFloatTileStrips = 1;
  static constexpr int kFloatRowStrips = 2;

  template <class Out, class Function>
  [[gnu::always_inline]] static inline Out each(Function function) {
    return {{function(0), function(1), function(2), function(3)}};
  }

  static F set(float value) {
    return each<F>([=](int) __attribute__((always_inline)) { return vdupq_n_f32(value); });
  }
  static F load(const float* data) {
    return each<F>([=](int i) __attribute__((always_inline)) { return vld1q_f32(data + 4 * i); });
  }
  static void store(float* out, F value) {
    for (int i = 0; i < 4; ++i) vst1q_f32(out + 4 * i, value.v[i]);
  }
  static F add(F a, F b) {
    return each<F>([&](int i) __attribute__((always_inline)) { return vaddq_f32(a.v[i], b.v[i]); });
  }
  static F mul(F a, F b) {
    return each<F>([&](int i) __attribute__((always_inline)) { return vmulq_f32(a.v[i], b.v[i]); });
  }
  static F fma(F a, F b, F c) {
    return each<F>([&](int i) __attribute__((always_inline)) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
  }
  static F from_half(const std::byte* data) {
    return each<F>([=](int i) __attribute__((always_inline)) {
      return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(bytes(data) + 8 * i)));
    });
  }
  static F from_bfloat(const std::byte* data) {
    return each<F>([=](int i) __attribute__((always_inline)) {
      return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(bytes(data) + 8 * i)), 16));
    });
  }
  static F from_e4m3(const std::byte* data) {
    const uint8x16_t codes = vld1q_u8(bytes(data));
    const uint16x8_t low = vmovl_u8(vget_low_u8(codes));
    const uint16x8_t high = vmovl_u8(vget_high_u8(codes));
    return {{e4m3(vmovl_u16(vget_low_u16(low))), e4m3(vmovl_u16(vget_high_u16(low))),
             e4m3(vmovl_u16(vget_low_u16(high))), e4m3(vmovl_u16(vget_high_u16(high)))}};
  }
  static F from_i8(const std::byte* data) {
    const int8x16_t values = vreinterpretq_s8_u8(vld1q_u8(bytes(data)));
    const int16x8_t low = vmovl_s8(vget_low_s8(values));
    const int16x8_t high = vmovl_s8(vget_high_s8(values));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
  }
  static F as_float(I value) {
    return each<F>([&](int i) __attribute__((always_inline)) { return vreinterpretq_f32_s32(value.v[i]); });
  }
  static F to_float(I value) {
    return each<F>([&](int i) __attribute__((always_inline)) { return vcvtq_f32_s32(value.v[i]); });
  }

  static I set_int(std::int32_t value) {
    return each<I>([=](int) __attribute__((always_inline)) { return vdupq_n_s32(value); });
  }
  static I add_int(I a, I b) {
    return each<I>([&](int i) __attribute__((always_inline)) { return vaddq_s32(a.v[i], b.v[i]); });
  }
  template <bool kWide>
  static I dot(I acc, B codes, A a) {
    return each<I>([&](int i) __attribute__((always_inline)) {
      const uint8x16_t level = kWide ? veorq_u8(codes.v[i], vdupq_n_u8(0x80)) : codes.v[i];
      return vdotq_s32(acc.v[i], vreinterpretq_s8_u8(level), a);
    });
  }
  static A activations(const std::int8_t* data) {
    std::int32_t value;
    __builtin_memcpy(&value, data, sizeof value);
    return vreinterpretq_s8_s32(vdupq_n_s32(value));
  }

  static B load_bytes(const std::byte* data) {
    return each<B>([=](int i) __attribute__((always_inline)) { return vld1q_u8(bytes(data) + 16 * i); });
  }
  static void store_bytes(std::byte* out, B value) {
    for (int i = 0; i < 4; ++i) vst1q_u8(reinterpret_cast<std::uint8_t*>(out) + 16 * i, value.v[i]);
  }
  static B low_nibbles(B b) {
    return each<B>([&](int i) __attribute__((always_inline)) { return vandq_u8(b.v[i], vdupq_n_u8(15)); });
  }
  static B high_nibbles(B b) {
    return each<B>([&](int i) __attribute__((always_inline)) { return vshrq_n_u8(b.v[i], 4); });
  }
  static B look_up(B b, const std::uint8_t (&table)[16]) {
    const uint8x16_t values = vld1q_u8(table);
    return each<B>([&](int i) __attribute__((always_inline)) { return vqtbl1q_u8(values, b.v[i]); });
  }
  template <int kField>
  [[gnu::always_inline]] static inline uint8x16_t pair(uint8x16_t pairs) {
    if constexpr (kField == 0) {
      return vandq_u8(pairs, vdupq_n_u8(3));
    } else {
      return vandq_u8(vshrq_n_u8(pairs, 2 * kField), vdupq_n_u8(3));
    }
  }
  template <int kField>
  static B bit_pair(B b) {
    return each<B>([&](int i) __attribute__((always_inline)) { return pair<kField>(b.v[i]); });
  }
  template <int kField>
  static B or_upper_pair(B b, B pairs) {
    return each<B>([&](int i) __attribute__((always_inline)) {
      return vorrq_u8(b.v[i], vshlq_n_u8(pair<kField>(pairs.v[i]), 4));
    });
  }
  template <int kValue>
  static B or_plane(B b, const std::byte* plane) {
    const std::uint8_t bits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t bit_of = vld1q_u8(bits);
    return each<B>([&](int i) __attribute__((always_inline)) {
      const uint8x16_t spread = vcombine_u8(vdup_n_u8(bytes(plane)[2 * i]), vdup_n_u8(bytes(plane)[2 * i + 1]));
      return vorrq_u8(b.v[i], vandq_u8(vtstq_u8(spread, bit_of), vdupq_n_u8(kValue)));
    });
  }
  template <int kByte>
  static I byte_of_lanes(B b) {
    return each<I>([&](int i) __attribute__((always_inline)) {
      const uint32x4_t lanes = vreinterpretq_u32_u8(b.v[i]);
      if constexpr (kByte == 0) {
        return vreinterpretq_s32_u32(vandq_u32(lanes, vdupq_n_u32(255)));
      } else {
        return vreinterpretq_s32_u32(vandq_u32(vshrq_n_u32(lanes, 8 * kByte), vdupq_n_u32(255)));
      }
    });
  }

  static float largest_magnitude(F a, F b) {
    uint32x4_t largest = vdupq_n_u32(0);
    for (int i = 0; i < 4; ++i) {
      largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(a.v[i])));
      largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(b.v[i])));
    }
    return vgetq_lane_f32(vreinterpretq_f32_u32(vdupq_n_u32(vmaxvq_u32(largest))), 0);
  }
  static std::int32_t store_codes(std::int8_t* out, F values) {
    int32x4_t codes[4];
    for (int i = 0; i < 4; ++i) codes[i] = vcvtnq_s32_f32(values.v[i]);
    const int16x8_t low = vcombine_s16(vqmovn_s32(codes[0]), vqmovn_s32(codes[1]));
    const int16x8_t high = vcombine_s16(vqmovn_s32(codes[2]), vqmovn_s32(codes[3]));
    vst1q_s8(out, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
    return vaddvq_s32(vaddq_s32(vaddq_s32(codes[0], codes[1]), vaddq_s32(codes[2], codes[3])));
  }

 private:
  static const std::uint8_t* bytes(const std::byte* data) { return reinterpret_cast<const std::uint8_t*>(data); }

  static float32x4_t e4m3(uint32x4_t wide) {
    const uint32x4_t magnitude = vandq_u32(wide, vdupq_n_u32(0x7F));
    // As the exponent and top mantissa bits of a float whose bias is 127 where the code's is 7: the factor makes up for
    // it, subnormal codes included.
    const float32x4_t value = vmulq_f32(vreinterpretq_f32_u32(vshlq_n_u32(magnitude, 20)), vdupq_n_f32(0x1p120f));
    const uint32x4_t nan = vceqq_u32(magnitude, vdupq_n_u32(0x7F));
    const uint32x4_t bits = vbslq_u32(nan, vdupq_n_u32(0x7FC00000), vreinterpretq_u32_f32(value));
    const uint32x4_t sign = vshlq_n_u32(vandq_u32(wide, vdupq_n_u32(0x80)), 24);
    return vreinterpretq_f32_u32(vorrq_u32(bits, sign));
  }
};

}  // namespace

constinit const LinearKernels kNeonLinear = kLinearOf<Neon>;

}  // namespace pocket
