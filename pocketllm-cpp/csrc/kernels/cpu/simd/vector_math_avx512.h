// Lanes in one AVX-512 register. For files named *_avx512.cpp alone; members are described in vector_math_scalar.h.
#pragma once

#include <cstdint>

// gcc 12 warns of its own unmasked intrinsics, whose ignored operand is undefined on purpose (gcc bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop


namespace pocket::avx512 {

struct Lanes {
  static constexpr int kCount = 16;
  static constexpr int kTileRows = 6;
  static constexpr int kTileColumns = 4;

  __m512 v;

  struct Mask {
    __mmask16 v;
  };

  static Lanes broadcast(float x) noexcept { return {_mm512_set1_ps(x)}; }
  static Lanes zero() noexcept { return {_mm512_setzero_ps()}; }
  static Lanes load(const float* p) noexcept { return {_mm512_loadu_ps(p)}; }
  static Lanes load_first(const float* p, int n) noexcept { return {_mm512_maskz_loadu_ps(range(0, n).v, p)}; }
  static Lanes load(const std::uint16_t* p) noexcept {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static Lanes load(const std::int8_t* p) noexcept {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
  }
  void store(float* p) const noexcept { _mm512_storeu_ps(p, v); }
  void store_first(float* p, int n) const noexcept { _mm512_mask_storeu_ps(p, range(0, n).v, v); }
  void store(std::uint16_t* p) const noexcept {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  void store(std::int8_t* p) const noexcept {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
  }

  friend Lanes operator+(Lanes a, Lanes b) noexcept { return {_mm512_add_ps(a.v, b.v)}; }
  friend Lanes operator-(Lanes a, Lanes b) noexcept { return {_mm512_sub_ps(a.v, b.v)}; }
  friend Lanes operator*(Lanes a, Lanes b) noexcept { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Lanes operator/(Lanes a, Lanes b) noexcept { return {_mm512_div_ps(a.v, b.v)}; }
  static Lanes fma(Lanes a, Lanes b, Lanes c) noexcept { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Lanes fnma(Lanes a, Lanes b, Lanes c) noexcept { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
  static Lanes max(Lanes a, Lanes b) noexcept { return {_mm512_max_ps(a.v, b.v)}; }
  static Lanes min(Lanes a, Lanes b) noexcept { return {_mm512_min_ps(a.v, b.v)}; }
  Lanes abs() const noexcept { return {_mm512_abs_ps(v)}; }
  Lanes round() const noexcept { return {_mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  Lanes times_power(Lanes n) const noexcept { return {_mm512_scalef_ps(v, n.v)}; }

  static Mask range(int first, int end) noexcept {
    const std::uint32_t below_end = end >= kCount ? 0xFFFFu : end <= 0 ? 0u : (1u << end) - 1u;
    const std::uint32_t below_first = first >= kCount ? 0xFFFFu : first <= 0 ? 0u : (1u << first) - 1u;
    return {static_cast<__mmask16>(below_end & ~below_first)};
  }
  static Mask less(Lanes a, Lanes b) noexcept { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
  static Mask at_least(Lanes a, Lanes b) noexcept { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
  static Mask from_bits(std::uint32_t bits) noexcept { return {static_cast<__mmask16>(bits)}; }
  static std::uint32_t bits(Mask mask) noexcept { return mask.v; }
  static Lanes select(Mask mask, Lanes yes, Lanes no) noexcept { return {_mm512_mask_blend_ps(mask.v, no.v, yes.v)}; }

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

  static void load_pairs(const float* p, Lanes& even, Lanes& odd) noexcept {
    const __m512 low = _mm512_loadu_ps(p);
    const __m512 high = _mm512_loadu_ps(p + kCount);
    const __m512i evens = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odds = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    even.v = _mm512_permutex2var_ps(low, evens, high);
    odd.v = _mm512_permutex2var_ps(low, odds, high);
  }
  static void store_pairs(float* p, Lanes even, Lanes odd) noexcept {
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    _mm512_storeu_ps(p, _mm512_permutex2var_ps(even.v, low, odd.v));
    _mm512_storeu_ps(p + kCount, _mm512_permutex2var_ps(even.v, high, odd.v));
  }

  static void prefetch(const void* p) noexcept { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
};

}  // namespace pocket::avx512
