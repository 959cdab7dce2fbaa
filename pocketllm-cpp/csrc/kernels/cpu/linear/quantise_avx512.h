// The quantisation of a unit with AVX-512, two groups of 32 at once (float_tiles.h has the formula).
#pragma once

#include "kernels/cpu/linear/float_tiles.h"
#include "kernels/cpu/simd/avx512.h"

namespace pocket::cpu {

template <>
[[gnu::always_inline]] inline void quantise_unit<avx512::Floats>(const float* x, std::int8_t* codes, float* scales,
                                                                 std::int32_t* sums) {
  __m512 values[4];
  __m512i magnitudes[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    values[i] = _mm512_loadu_ps(x + 16 * i);
    magnitudes[i] = _mm512_and_si512(_mm512_castps_si512(values[i]), _mm512_set1_epi32(0x7FFFFFFF));
  }
  // The first group's largest magnitude goes to every lane of the low half, the second group's to the high half.
  const __m512i first = _mm512_max_epi32(magnitudes[0], magnitudes[1]);
  const __m512i second = _mm512_max_epi32(magnitudes[2], magnitudes[3]);
  __m512i largest = _mm512_max_epi32(_mm512_shuffle_i64x2(first, second, 0x44),
                                     _mm512_shuffle_i64x2(first, second, 0xEE));
  largest = _mm512_max_epi32(largest, _mm512_shuffle_i64x2(largest, largest, 0xB1));
  largest = _mm512_max_epi32(largest, _mm512_shuffle_epi32(largest, _MM_PERM_BADC));
  largest = _mm512_max_epi32(largest, _mm512_shuffle_epi32(largest, _MM_PERM_CDAB));
  // Divided once per group: in lanes 0 and 1.
  const __m128 both = _mm_unpacklo_ps(_mm_castsi128_ps(_mm512_castsi512_si128(largest)),
                                      _mm_castsi128_ps(_mm512_extracti32x4_epi32(largest, 2)));
  const __mmask8 tiny = _mm_cmp_ps_mask(both, _mm_set1_ps(0x1p-100f), _CMP_LT_OQ);
  const __m128 inverse = _mm_mask_mov_ps(_mm_div_ps(_mm_set1_ps(127.0f), both), tiny, _mm_setzero_ps());
  const __mmask8 zero = _mm_cmp_ps_mask(inverse, _mm_setzero_ps(), _CMP_EQ_OQ);
  const __m128 scale = _mm_mask_mov_ps(_mm_div_ps(both, _mm_set1_ps(127.0f)), zero,
                                       _mm_mul_ps(both, _mm_setzero_ps()));
  _mm_storel_pi(reinterpret_cast<__m64*>(scales), scale);
  const __m512 factors[2] = {_mm512_broadcastss_ps(inverse), _mm512_broadcastss_ps(_mm_movehdup_ps(inverse))};
  __m512i levels[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) levels[i] = _mm512_cvtps_epi32(_mm512_mul_ps(values[i], factors[i / 2]));
  // Packing works within 128-bit lanes and leaves groups of four codes out of order.
  const __m512i mixed = _mm512_packs_epi16(_mm512_packs_epi32(levels[0], levels[1]),
                                           _mm512_packs_epi32(levels[2], levels[3]));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i packed = _mm512_permutexvar_epi32(order, mixed);
  _mm512_storeu_si512(codes, packed);
  __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), packed);
  sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_BADC));
  sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_CDAB));
  const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(sums), _mm512_castsi512_si128(_mm512_permutexvar_epi32(lanes, sum)));
}

}  // namespace pocket::cpu
