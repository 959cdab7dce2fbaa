// The vectors with AVX2: sixteen lanes are two registers. scalar.h describes the types and their members.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace pocket::cpu::avx2 {

struct Quad {
  __m256i v;

  static Quad load(const std::int8_t* p) noexcept {
    std::int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return {_mm256_set1_epi32(four)};
  }
};

struct Bytes;

struct Ints {
  static constexpr bool kUnsignedDot = false;
  static constexpr bool kSlowDot = false;
  static constexpr int kWideOffset = 128;
  static constexpr int kTileRows = 2;

  __m256i a, b;

  static Ints broadcast(std::int32_t x) noexcept { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  friend Ints operator+(Ints x, Ints y) noexcept { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  // A byte product is vpmaddubsw and vpmaddwd.
  template <bool kWide>
  static Ints dot(Ints sum, Bytes codes, Quad quad) noexcept;

 private:
  template <bool kWide>
  static __m256i products(__m256i codes, __m256i quad) noexcept {
    // Two products of 7-bit magnitudes fit 16 bits. Wide codes are made signed, and their sign goes to the quad.
    __m256i pairs;
    if constexpr (kWide) {
      const __m256i level = _mm256_xor_si256(codes, _mm256_set1_epi8(static_cast<char>(0x80)));
      pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(level), _mm256_sign_epi8(quad, level));
    } else {
      pairs = _mm256_maddubs_epi16(codes, quad);
    }
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
};

struct Bytes {
  __m256i a, b;

  static Bytes load(const std::byte* p) noexcept {
    const auto* registers = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(registers), _mm256_loadu_si256(registers + 1)};
  }
  void store(std::byte* p) const noexcept {
    auto* registers = reinterpret_cast<__m256i*>(p);
    _mm256_storeu_si256(registers, a);
    _mm256_storeu_si256(registers + 1, b);
  }
  Bytes low_nibbles() const noexcept { return {masked(a, 15), masked(b, 15)}; }
  Bytes high_nibbles() const noexcept {
    return {masked(_mm256_srli_epi16(a, 4), 15), masked(_mm256_srli_epi16(b, 4), 15)};
  }
  Bytes look_up(const std::uint8_t (&table)[16]) const noexcept {
    const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm256_shuffle_epi8(values, a), _mm256_shuffle_epi8(values, b)};
  }
  template <int kField>
  Bytes bit_pair() const noexcept {
    return {masked(_mm256_srli_epi16(a, 2 * kField), 3), masked(_mm256_srli_epi16(b, 2 * kField), 3)};
  }
  template <int kField>
  Bytes or_upper_pair(Bytes pairs) const noexcept {
    return {_mm256_or_si256(a, upper_pair<kField>(pairs.a)), _mm256_or_si256(b, upper_pair<kField>(pairs.b))};
  }
  template <int kValue>
  Bytes or_plane(const std::byte* plane) const noexcept {
    std::uint32_t bits[2];
    __builtin_memcpy(bits, plane, sizeof bits);
    return {_mm256_or_si256(a, spread(bits[0], kValue)), _mm256_or_si256(b, spread(bits[1], kValue))};
  }
  template <int kByte>
  Ints byte_of_lanes() const noexcept {
    const __m256i mask = _mm256_set1_epi32(255);
    return {_mm256_and_si256(_mm256_srli_epi32(a, 8 * kByte), mask),
            _mm256_and_si256(_mm256_srli_epi32(b, 8 * kByte), mask)};
  }

 private:
  static __m256i masked(__m256i bytes, int mask) noexcept {
    return _mm256_and_si256(bytes, _mm256_set1_epi8(static_cast<char>(mask)));
  }
  template <int kField>
  static __m256i upper_pair(__m256i pairs) noexcept {
    if constexpr (kField < 2) {
      return masked(_mm256_slli_epi16(pairs, 4 - 2 * kField), 0x30);
    } else {
      return masked(_mm256_srli_epi16(pairs, 2 * kField - 4), 0x30);
    }
  }
  // `value` in every byte whose bit of `bits` is set.
  static __m256i spread(std::uint32_t bits, int value) noexcept {
    const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit_of = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201u));
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), byte_of);
    return masked(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_of), bit_of), value);
  }
};

template <bool kWide>
inline Ints Ints::dot(Ints sum, Bytes codes, Quad quad) noexcept {
  return {_mm256_add_epi32(sum.a, products<kWide>(codes.a, quad.v)),
          _mm256_add_epi32(sum.b, products<kWide>(codes.b, quad.v))};
}

struct Floats {
  static constexpr int kCount = 16;
  static constexpr int kTileRows = 3;
  static constexpr int kTileColumns = 2;
  static constexpr int kRowColumns = 4;
  static constexpr int kWeightTileColumns = 2;

  using Ints = avx2::Ints;
  using Bytes = avx2::Bytes;
  using Quad = avx2::Quad;
  struct Mask {
    __m256 a, b;  // all bits of a lane, or none
  };

  __m256 a, b;

  static Floats broadcast(float x) noexcept { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Floats zero() noexcept { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Floats load(const float* p) noexcept { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Floats load_first(const float* p, int n) noexcept {
    const Mask mask = range(0, n);
    return {_mm256_maskload_ps(p, _mm256_castps_si256(mask.a)), _mm256_maskload_ps(p + 8, _mm256_castps_si256(mask.b))};
  }
  static Floats load(const std::uint16_t* p) noexcept {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  static Floats load(const std::int8_t* p) noexcept {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8))))};
  }
  static Floats load_bfloat(const std::byte* p) noexcept { return {bfloats(half_of(p)), bfloats(half_of(p + 16))}; }
  static Floats load_e4m3(const std::byte* p) noexcept {
    const __m128i codes = half_of(p);
    return {e4m3(_mm256_cvtepu8_epi32(codes)), e4m3(_mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8)))};
  }
  static Floats bit_cast(Ints x) noexcept { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
  static Floats convert(Ints x) noexcept { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  void store(float* p) const noexcept {
    _mm256_storeu_ps(p, a);
    _mm256_storeu_ps(p + 8, b);
  }
  void store_first(float* p, int n) const noexcept {
    const Mask mask = range(0, n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(mask.a), a);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(mask.b), b);
  }
  void store(std::uint16_t* p) const noexcept {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT));
  }
  void store(std::int8_t* p) const noexcept {
    // Packing works in 128-bit halves; the permutation puts the quarters of 16-bit lanes back in order.
    const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
    const __m256i words = _mm256_permute4x64_epi64(packed, 0xD8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  }
  std::int32_t store_codes(std::int8_t* p) const noexcept {
    store(p);
    const __m256i sums = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1));
    return _mm_cvtsi128_si32(four);
  }

  friend Floats operator+(Floats x, Floats y) noexcept { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  friend Floats operator-(Floats x, Floats y) noexcept { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  friend Floats operator*(Floats x, Floats y) noexcept { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  friend Floats operator/(Floats x, Floats y) noexcept { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static Floats fma(Floats x, Floats y, Floats z) noexcept {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static Floats mul_add(Floats x, Floats y, Floats z) noexcept { return fma(x, y, z); }
  static Floats neg_mul_add(Floats x, Floats y, Floats z) noexcept {
    return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
  }
  static Floats max(Floats x, Floats y) noexcept { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static Floats min(Floats x, Floats y) noexcept { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  Floats abs() const noexcept {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a), _mm256_andnot_ps(sign, b)};
  }
  Floats round() const noexcept {
    return {_mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  Floats times_power(Floats n) const noexcept { return {times_power(a, n.a), times_power(b, n.b)}; }

  static Mask range(int first, int end) noexcept {
    const __m256i low = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    const __m256i high = _mm256_set_epi32(15, 14, 13, 12, 11, 10, 9, 8);
    const __m256i before = _mm256_set1_epi32(first - 1);
    const __m256i after = _mm256_set1_epi32(end);
    return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(low, before), _mm256_cmpgt_epi32(after, low))),
            _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(high, before), _mm256_cmpgt_epi32(after, high)))};
  }
  static Mask less(Floats x, Floats y) noexcept {
    return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
  }
  static Mask at_least(Floats x, Floats y) noexcept {
    return {_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ)};
  }
  static Mask from_bits(std::uint32_t bits) noexcept {
    const __m256i low = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
    const __m256i high = _mm256_slli_epi32(low, 8);
    const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
    return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, low), low)),
            _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, high), high))};
  }
  static std::uint32_t bits(Mask mask) noexcept {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(mask.a)) |
           (static_cast<std::uint32_t>(_mm256_movemask_ps(mask.b)) << 8);
  }
  static Floats select(Mask mask, Floats yes, Floats no) noexcept {
    return {_mm256_blendv_ps(no.a, yes.a, mask.a), _mm256_blendv_ps(no.b, yes.b, mask.b)};
  }

  float sum() const noexcept {
    const __m256 eight = _mm256_add_ps(a, b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  float largest() const noexcept {
    const __m256 eight = _mm256_max_ps(a, b);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

  static float largest_magnitude(Floats x, Floats y) noexcept {
    const __m256i eight = _mm256_max_epi32(_mm256_max_epi32(magnitudes(x.a), magnitudes(x.b)),
                                           _mm256_max_epi32(magnitudes(y.a), magnitudes(y.b)));
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1));
    return _mm_cvtss_f32(_mm_castsi128_ps(four));
  }

  static void load_pairs(const float* p, Floats& even, Floats& odd) noexcept {
    split(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), even.a, odd.a);
    split(_mm256_loadu_ps(p + 16), _mm256_loadu_ps(p + 24), even.b, odd.b);
  }
  static void store_pairs(float* p, Floats even, Floats odd) noexcept {
    join(p, even.a, odd.a);
    join(p + 16, even.b, odd.b);
  }

  static void prefetch(const void* p) noexcept { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

 private:
  static __m128i half_of(const std::byte* p) noexcept { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static __m256 bfloats(__m128i bits) noexcept {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static __m256 e4m3(__m256i codes) noexcept {
    const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(0x7F));
    // As the exponent and top mantissa bits of a float whose bias is 127 where the code's is 7: the factor makes up for
    // it, subnormal codes included.
    const __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)), _mm256_set1_ps(0x1p120f));
    const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7F));
    const __m256i bits = _mm256_blendv_epi8(_mm256_castps_si256(value), _mm256_set1_epi32(0x7FC00000), nan);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(0x80)), 24);
    return _mm256_castsi256_ps(_mm256_or_si256(bits, sign));
  }
  static __m256i magnitudes(__m256 x) noexcept {
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
  }
  static __m256 times_power(__m256 x, __m256 n) noexcept {
    const __m256i power = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(power, 1);
    const __m256i rest = _mm256_sub_epi32(power, half);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    const __m256 second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(x, first), second);
  }
  static void split(__m256 low, __m256 high, __m256& even, __m256& odd) noexcept {
    const __m256 evens = _mm256_shuffle_ps(low, high, 0x88);
    const __m256 odds = _mm256_shuffle_ps(low, high, 0xDD);
    even = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(evens), 0xD8));
    odd = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odds), 0xD8));
  }
  static void join(float* p, __m256 even, __m256 odd) noexcept {
    const __m256 low = _mm256_unpacklo_ps(even, odd);
    const __m256 high = _mm256_unpackhi_ps(even, odd);
    _mm256_storeu_ps(p, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(low, high, 0x31));
  }
};

}  // namespace pocket::cpu::avx2
