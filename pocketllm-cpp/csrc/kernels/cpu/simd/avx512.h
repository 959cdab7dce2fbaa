// The vectors with AVX-512: sixteen lanes are one register. scalar.h describes the types and their members.
#pragma once

#include <cstddef>
#include <cstdint>

// gcc 12 warns of its own unmasked intrinsics, whose ignored operand is undefined on purpose (gcc bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

namespace pocket::cpu::avx512 {

struct Quad {
  __m512i v;

  static Quad load(const std::int8_t* p) noexcept {
    std::int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return {_mm512_set1_epi32(four)};
  }
};

struct Bytes;

struct Ints {
  static constexpr bool kUnsignedDot = true;
  static constexpr bool kSlowDot = true;
  static constexpr int kWideOffset = 0;
  // Six rows times two strips: 12 integer and 12 float accumulators, and one load of a quad for two products.
  static constexpr int kTileRows = 6;

  __m512i v;

  static Ints broadcast(std::int32_t x) noexcept { return {_mm512_set1_epi32(x)}; }
  friend Ints operator+(Ints x, Ints y) noexcept { return {_mm512_add_epi32(x.v, y.v)}; }
  // A byte product is VNNI's vpdpbusd.
  template <bool kWide>
  static Ints dot(Ints sum, Bytes codes, Quad quad) noexcept;
  Ints sixteenth() const noexcept { return {_mm512_srai_epi32(v, 4)}; }
};

struct Bytes {
  __m512i v;

  static Bytes load(const std::byte* p) noexcept { return {_mm512_loadu_si512(p)}; }
  void store(std::byte* p) const noexcept { _mm512_storeu_si512(p, v); }
  Bytes low_nibbles() const noexcept { return {_mm512_and_si512(v, _mm512_set1_epi8(15))}; }
  Bytes high_nibbles() const noexcept { return Bytes{_mm512_srli_epi16(v, 4)}.low_nibbles(); }
  Bytes high_nibbles_in_place() const noexcept {
    return {_mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(0xF0)))};
  }
  Bytes look_up(const std::uint8_t (&table)[16]) const noexcept {
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), v)};
  }
  template <int kField>
  Bytes bit_pair() const noexcept {
    return {_mm512_and_si512(_mm512_srli_epi16(v, 2 * kField), _mm512_set1_epi8(3))};
  }
  template <int kField>
  Bytes or_upper_pair(Bytes pairs) const noexcept {
    const __m512i mask = _mm512_set1_epi8(0x30);
    constexpr int kOrAnd = 0xF8;  // a | (b & c)
    if constexpr (kField < 2) {
      return {_mm512_ternarylogic_epi64(v, _mm512_slli_epi16(pairs.v, 4 - 2 * kField), mask, kOrAnd)};
    } else {
      return {_mm512_ternarylogic_epi64(v, _mm512_srli_epi16(pairs.v, 2 * kField - 4), mask, kOrAnd)};
    }
  }
  template <int kValue>
  Bytes or_plane(const std::byte* plane) const noexcept {
    std::uint64_t bits;
    __builtin_memcpy(&bits, plane, sizeof bits);
    return {_mm512_mask_add_epi8(v, bits, v, _mm512_set1_epi8(kValue))};
  }
  template <int kByte>
  Ints byte_of_lanes() const noexcept {
    return {_mm512_and_si512(_mm512_srli_epi32(v, 8 * kByte), _mm512_set1_epi32(255))};
  }
};

template <bool kWide>
inline Ints Ints::dot(Ints sum, Bytes codes, Quad quad) noexcept {
  return {_mm512_dpbusd_epi32(sum.v, codes.v, quad.v)};
}

struct Floats {
  static constexpr int kCount = 16;
  static constexpr int kTileRows = 6;
  static constexpr int kTileColumns = 4;
  static constexpr int kRowColumns = 8;
  static constexpr int kWeightTileColumns = 4;

  using Ints = avx512::Ints;
  using Bytes = avx512::Bytes;
  using Quad = avx512::Quad;
  struct Mask {
    __mmask16 v;
  };

  __m512 v;

  static Floats broadcast(float x) noexcept { return {_mm512_set1_ps(x)}; }
  static Floats zero() noexcept { return {_mm512_setzero_ps()}; }
  static Floats load(const float* p) noexcept { return {_mm512_loadu_ps(p)}; }
  static Floats load_first(const float* p, int n) noexcept { return {_mm512_maskz_loadu_ps(range(0, n).v, p)}; }
  static Floats load(const std::uint16_t* p) noexcept {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static Floats load(const std::int8_t* p) noexcept {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
  }
  static Floats load_bfloat(const std::byte* p) noexcept {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  static Floats load_e4m3(const std::byte* p) noexcept {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m512i wide = _mm512_cvtepu8_epi32(codes);
    const __m512i magnitude = _mm512_and_si512(wide, _mm512_set1_epi32(0x7F));
    // As the exponent and top mantissa bits of a float whose bias is 127 where the code's is 7: the factor makes up for
    // it, subnormal codes included.
    const __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(magnitude, 20)), _mm512_set1_ps(0x1p120f));
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7F));
    const __m512i bits = _mm512_mask_mov_epi32(_mm512_castps_si512(value), nan, _mm512_set1_epi32(0x7FC00000));
    const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(wide, _mm512_set1_epi32(0x80)), 24);
    return {_mm512_castsi512_ps(_mm512_or_si512(bits, sign))};
  }
  static Floats bit_cast(Ints x) noexcept { return {_mm512_castsi512_ps(x.v)}; }
  static Floats convert(Ints x) noexcept { return {_mm512_cvtepi32_ps(x.v)}; }
  void store(float* p) const noexcept { _mm512_storeu_ps(p, v); }
  void store_first(float* p, int n) const noexcept { _mm512_mask_storeu_ps(p, range(0, n).v, v); }
  void store(std::uint16_t* p) const noexcept {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  void store(std::int8_t* p) const noexcept {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
  }

  friend Floats operator+(Floats a, Floats b) noexcept { return {_mm512_add_ps(a.v, b.v)}; }
  friend Floats operator-(Floats a, Floats b) noexcept { return {_mm512_sub_ps(a.v, b.v)}; }
  friend Floats operator*(Floats a, Floats b) noexcept { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Floats operator/(Floats a, Floats b) noexcept { return {_mm512_div_ps(a.v, b.v)}; }
  static Floats fma(Floats a, Floats b, Floats c) noexcept { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Floats mul_add(Floats a, Floats b, Floats c) noexcept { return fma(a, b, c); }
  static Floats neg_mul_add(Floats a, Floats b, Floats c) noexcept { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
  static Floats max(Floats a, Floats b) noexcept { return {_mm512_max_ps(a.v, b.v)}; }
  static Floats min(Floats a, Floats b) noexcept { return {_mm512_min_ps(a.v, b.v)}; }
  Floats abs() const noexcept { return {_mm512_abs_ps(v)}; }
  Floats round() const noexcept { return {_mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  Floats times_power(Floats n) const noexcept { return {_mm512_scalef_ps(v, n.v)}; }

  static Mask range(int first, int end) noexcept {
    const std::uint32_t below_end = end >= kCount ? 0xFFFFu : end <= 0 ? 0u : (1u << end) - 1u;
    const std::uint32_t below_first = first >= kCount ? 0xFFFFu : first <= 0 ? 0u : (1u << first) - 1u;
    return {static_cast<__mmask16>(below_end & ~below_first)};
  }
  static Mask less(Floats a, Floats b) noexcept { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
  static Mask at_least(Floats a, Floats b) noexcept { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
  static Mask from_bits(std::uint32_t bits) noexcept { return {static_cast<__mmask16>(bits)}; }
  static std::uint32_t bits(Mask mask) noexcept { return mask.v; }
  static Floats select(Mask mask, Floats yes, Floats no) noexcept {
    return {_mm512_mask_blend_ps(mask.v, no.v, yes.v)};
  }

  float sum() const noexcept {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  float largest() const noexcept {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

  static void load_pairs(const float* p, Floats& even, Floats& odd) noexcept {
    const __m512 low = _mm512_loadu_ps(p);
    const __m512 high = _mm512_loadu_ps(p + kCount);
    const __m512i evens = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odds = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    even.v = _mm512_permutex2var_ps(low, evens, high);
    odd.v = _mm512_permutex2var_ps(low, odds, high);
  }
  static void store_pairs(float* p, Floats even, Floats odd) noexcept {
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    _mm512_storeu_ps(p, _mm512_permutex2var_ps(even.v, low, odd.v));
    _mm512_storeu_ps(p + kCount, _mm512_permutex2var_ps(even.v, high, odd.v));
  }

  static void prefetch(const void* p) noexcept { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
};

}  // namespace pocket::cpu::avx512
