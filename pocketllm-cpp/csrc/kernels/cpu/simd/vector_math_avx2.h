// Lanes in two AVX2 registers. For files named *_avx2.cpp alone; members are described in vector_math_scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace pocket::avx2 {

struct Lanes {
  static constexpr int kCount = 16;
  static constexpr int kTileRows = 3;
  static constexpr int kTileColumns = 2;

  __m256 a, b;

  struct Mask {
    __m256 a, b;  // all bits of a lane, or none
  };

  static Lanes broadcast(float x) noexcept { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Lanes zero() noexcept { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Lanes load(const float* p) noexcept { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Lanes load_first(const float* p, int n) noexcept {
    const Mask mask = range(0, n);
    return {_mm256_maskload_ps(p, _mm256_castps_si256(mask.a)), _mm256_maskload_ps(p + 8, _mm256_castps_si256(mask.b))};
  }
  static Lanes load(const std::uint16_t* p) noexcept {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  static Lanes load(const std::int8_t* p) noexcept {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8))))};
  }
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

  friend Lanes operator+(Lanes x, Lanes y) noexcept { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  friend Lanes operator-(Lanes x, Lanes y) noexcept { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  friend Lanes operator*(Lanes x, Lanes y) noexcept { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  friend Lanes operator/(Lanes x, Lanes y) noexcept { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static Lanes fma(Lanes x, Lanes y, Lanes z) noexcept {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static Lanes fnma(Lanes x, Lanes y, Lanes z) noexcept {
    return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
  }
  static Lanes max(Lanes x, Lanes y) noexcept { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static Lanes min(Lanes x, Lanes y) noexcept { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  Lanes abs() const noexcept {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a), _mm256_andnot_ps(sign, b)};
  }
  Lanes round() const noexcept {
    return {_mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  Lanes times_power(Lanes n) const noexcept { return {times_power(a, n.a), times_power(b, n.b)}; }

  static Mask range(int first, int end) noexcept {
    const __m256i low = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    const __m256i high = _mm256_set_epi32(15, 14, 13, 12, 11, 10, 9, 8);
    const __m256i before = _mm256_set1_epi32(first - 1);
    const __m256i after = _mm256_set1_epi32(end);
    return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(low, before), _mm256_cmpgt_epi32(after, low))),
            _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(high, before), _mm256_cmpgt_epi32(after, high)))};
  }
  static Mask less(Lanes x, Lanes y) noexcept {
    return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
  }
  static Mask at_least(Lanes x, Lanes y) noexcept {
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
  static Lanes select(Mask mask, Lanes yes, Lanes no) noexcept {
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

  static void load_pairs(const float* p, Lanes& even, Lanes& odd) noexcept {
    split(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), even.a, odd.a);
    split(_mm256_loadu_ps(p + 16), _mm256_loadu_ps(p + 24), even.b, odd.b);
  }
  static void store_pairs(float* p, Lanes even, Lanes odd) noexcept {
    join(p, even.a, odd.a);
    join(p + 16, even.b, odd.b);
  }

  static void prefetch(const void* p) noexcept { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

 private:
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

}  // namespace pocket::avx2
