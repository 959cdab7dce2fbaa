// The products with AVX-512: 16 lanes are one register, and the byte product is VNNI's vpdpbusd.
// GCC 12 calls the undefined registers of its own intrinsics uninitialised (its bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include "kernels/cpu/linear/float_tiles.h"

namespace pocket {
namespace {

struct Avx512 {
  using F = __m512;
  using I = __m512i;
  using B = __m512i;
  using A = __m512i;

  static constexpr bool kUnsignedDot = true;
  static constexpr int kWideOffset = 0;
  // 6 rows x 2 strips: 12 integer and 12 float accumulators, and one load of activations for two products.
  static constexpr int kTileRows = 6;
  static constexpr int kFloatTileRows = 6;
  static constexpr int kFloatTileStrips = 4;
  static constexpr int kFloatRowStrips = 8;

  static F set(float value) { return _mm512_set1_ps(value); }
  static F load(const float* data) { return _mm512_loadu_ps(data); }
  static void store(float* out, F value) { _mm512_storeu_ps(out, value); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F from_half(const std::byte* data) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(data)));
  }
  static F from_bfloat(const std::byte* data) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static F from_e4m3(const std::byte* data) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
    const __m512i wide = _mm512_cvtepu8_epi32(codes);
    const __m512i magnitude = _mm512_and_si512(wide, _mm512_set1_epi32(0x7F));
    // As the exponent and top mantissa bits of a float whose bias is 127 where the code's is 7: the factor makes up for
    // it, subnormal codes included.
    const __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(magnitude, 20)), _mm512_set1_ps(0x1p120f));
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7F));
    const __m512i bits = _mm512_mask_mov_epi32(_mm512_castps_si512(value), nan, _mm512_set1_epi32(0x7FC00000));
    const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(wide, _mm512_set1_epi32(0x80)), 24);
    return _mm512_castsi512_ps(_mm512_or_si512(bits, sign));
  }
  static F from_i8(const std::byte* data) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data))));
  }
  static F as_float(I value) { return _mm512_castsi512_ps(value); }
  static F to_float(I value) { return _mm512_cvtepi32_ps(value); }

  static I set_int(std::int32_t value) { return _mm512_set1_epi32(value); }
  static I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sixteenth(I value) { return _mm512_srai_epi32(value, 4); }
  template <bool kWide>
  static I dot(I acc, B codes, A a) {
    return _mm512_dpbusd_epi32(acc, codes, a);
  }
  static A activations(const std::int8_t* data) {
    std::int32_t value;
    __builtin_memcpy(&value, data, sizeof value);
    return _mm512_set1_epi32(value);
  }

  static B load_bytes(const std::byte* data) { return _mm512_loadu_si512(data); }
  static void store_bytes(std::byte* out, B value) { _mm512_storeu_si512(out, value); }
  static B low_nibbles(B b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
  static B high_nibbles(B b) { return low_nibbles(_mm512_srli_epi16(b, 4)); }
  static B high_nibbles_in_place(B b) { return _mm512_and_si512(b, _mm512_set1_epi8(static_cast<char>(0xF0))); }
  static B look_up(B b, const std::uint8_t (&table)[16]) {
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), b);
  }
  template <int kField>
  static B bit_pair(B b) {
    return _mm512_and_si512(_mm512_srli_epi16(b, 2 * kField), _mm512_set1_epi8(3));
  }
  template <int kField>
  static B or_upper_pair(B b, B pairs) {
    const __m512i mask = _mm512_set1_epi8(0x30);
    constexpr int kOrAnd = 0xF8;  // a | (b & c)
    if constexpr (kField < 2) {
      return _mm512_ternarylogic_epi64(b, _mm512_slli_epi16(pairs, 4 - 2 * kField), mask, kOrAnd);
    } else {
      return _mm512_ternarylogic_epi64(b, _mm512_srli_epi16(pairs, 2 * kField - 4), mask, kOrAnd);
    }
  }
  template <int kValue>
  static B or_plane(B b, const std::byte* plane) {
    std::uint64_t bits;
    __builtin_memcpy(&bits, plane, sizeof bits);
    return _mm512_mask_add_epi8(b, bits, b, _mm512_set1_epi8(kValue));
  }
  template <int kByte>
  static I byte_of_lanes(B b) {
    return _mm512_and_si512(_mm512_srli_epi32(b, 8 * kByte), _mm512_set1_epi32(255));
  }

  // Two groups of 32 at once (quantise_row in float_tiles.h has the formula).
  static void quantise_unit(const float* x, std::int8_t* codes, float* scales, std::int32_t* sums) {
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
};

}  // namespace

constinit const LinearKernels kAvx512Linear = kLinearOf<Avx512>;

}  // namespace pocket
