// The products with AVX2: 16 lanes are two registers, and a byte product is vpmaddubsw and vpmaddwd.
#include <immintrin.h>

#include "kernels/cpu/linear/float_tiles.h"

namespace pocket {
namespace {

struct Avx2 {
  struct F { __m256 low, high; };
  struct I { __m256i low, high; };  // rows 0 to 7, 8 to 15
  struct B { __m256i low, high; };
  using A = __m256i;

  static constexpr bool kUnsignedDot = false;
  static constexpr int kWideOffset = 128;
  static constexpr int kTileRows = 2;
  static constexpr int kFloatTileRows = 3;
  static constexpr int kFloatTileStrips = 2;
  static constexpr int kFloatRowStrips = 4;

  static F set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static F load(const float* data) { return {_mm256_loadu_ps(data), _mm256_loadu_ps(data + 8)}; }
  static void store(float* out, F value) {
    _mm256_storeu_ps(out, value.low);
    _mm256_storeu_ps(out + 8, value.high);
  }
  static F add(F a, F b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  static F mul(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static F fma(F a, F b, F c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static __m128i load_half_register(const std::byte* data) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
  }
  static F from_half(const std::byte* data) {
    return {_mm256_cvtph_ps(load_half_register(data)), _mm256_cvtph_ps(load_half_register(data + 16))};
  }
  static __m256 bfloats(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static F from_bfloat(const std::byte* data) {
    return {bfloats(load_half_register(data)), bfloats(load_half_register(data + 16))};
  }
  static __m256 e4m3(__m256i wide) {
    const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi32(0x7F));
    // As the exponent and top mantissa bits of a float whose bias is 127 where the code's is 7: the factor makes up for
    // it, subnormal codes included.
    const __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)), _mm256_set1_ps(0x1p120f));
    const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7F));
    const __m256i bits = _mm256_blendv_epi8(_mm256_castps_si256(value), _mm256_set1_epi32(0x7FC00000), nan);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(wide, _mm256_set1_epi32(0x80)), 24);
    return _mm256_castsi256_ps(_mm256_or_si256(bits, sign));
  }
  static F from_e4m3(const std::byte* data) {
    const __m128i codes = load_half_register(data);
    return {e4m3(_mm256_cvtepu8_epi32(codes)), e4m3(_mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8)))};
  }
  static F from_i8(const std::byte* data) {
    const __m128i bytes = load_half_register(data);
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
  }
  static F as_float(I value) { return {_mm256_castsi256_ps(value.low), _mm256_castsi256_ps(value.high)}; }
  static F to_float(I value) { return {_mm256_cvtepi32_ps(value.low), _mm256_cvtepi32_ps(value.high)}; }

  static I set_int(std::int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
  static I add_int(I a, I b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
  template <bool kWide>
  static __m256i products(__m256i codes, A a) {
    // Two products of 7-bit magnitudes fit 16 bits. Wide codes are made signed, and their sign goes to the activation.
    __m256i pairs;
    if constexpr (kWide) {
      const __m256i level = _mm256_xor_si256(codes, _mm256_set1_epi8(static_cast<char>(0x80)));
      pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(level), _mm256_sign_epi8(a, level));
    } else {
      pairs = _mm256_maddubs_epi16(codes, a);
    }
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  template <bool kWide>
  static I dot(I acc, B codes, A a) {
    return {_mm256_add_epi32(acc.low, products<kWide>(codes.low, a)),
            _mm256_add_epi32(acc.high, products<kWide>(codes.high, a))};
  }
  static A activations(const std::int8_t* data) {
    std::int32_t value;
    __builtin_memcpy(&value, data, sizeof value);
    return _mm256_set1_epi32(value);
  }

  static B load_bytes(const std::byte* data) {
    const auto* registers = reinterpret_cast<const __m256i*>(data);
    return {_mm256_loadu_si256(registers), _mm256_loadu_si256(registers + 1)};
  }
  static void store_bytes(std::byte* out, B value) {
    auto* registers = reinterpret_cast<__m256i*>(out);
    _mm256_storeu_si256(registers, value.low);
    _mm256_storeu_si256(registers + 1, value.high);
  }
  static __m256i masked(__m256i bytes, int mask) {
    return _mm256_and_si256(bytes, _mm256_set1_epi8(static_cast<char>(mask)));
  }
  static B low_nibbles(B b) { return {masked(b.low, 15), masked(b.high, 15)}; }
  static B high_nibbles(B b) {
    return {masked(_mm256_srli_epi16(b.low, 4), 15), masked(_mm256_srli_epi16(b.high, 4), 15)};
  }
  static B look_up(B b, const std::uint8_t (&table)[16]) {
    const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm256_shuffle_epi8(values, b.low), _mm256_shuffle_epi8(values, b.high)};
  }
  template <int kField>
  static B bit_pair(B b) {
    return {masked(_mm256_srli_epi16(b.low, 2 * kField), 3), masked(_mm256_srli_epi16(b.high, 2 * kField), 3)};
  }
  template <int kField>
  static __m256i upper_pair(__m256i pairs) {
    if constexpr (kField < 2) {
      return masked(_mm256_slli_epi16(pairs, 4 - 2 * kField), 0x30);
    } else {
      return masked(_mm256_srli_epi16(pairs, 2 * kField - 4), 0x30);
    }
  }
  template <int kField>
  static B or_upper_pair(B b, B pairs) {
    return {_mm256_or_si256(b.low, upper_pair<kField>(pairs.low)),
            _mm256_or_si256(b.high, upper_pair<kField>(pairs.high))};
  }
  // `value` in every byte whose bit of `bits` is set.
  static __m256i spread(std::uint32_t bits, int value) {
    const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit_of = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201u));
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), byte_of);
    return masked(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_of), bit_of), value);
  }
  template <int kValue>
  static B or_plane(B b, const std::byte* plane) {
    std::uint32_t bits[2];
    __builtin_memcpy(bits, plane, sizeof bits);
    return {_mm256_or_si256(b.low, spread(bits[0], kValue)), _mm256_or_si256(b.high, spread(bits[1], kValue))};
  }
  template <int kByte>
  static I byte_of_lanes(B b) {
    const __m256i mask = _mm256_set1_epi32(255);
    return {_mm256_and_si256(_mm256_srli_epi32(b.low, 8 * kByte), mask),
            _mm256_and_si256(_mm256_srli_epi32(b.high, 8 * kByte), mask)};
  }

  static __m256i magnitudes(__m256 value) {
    return _mm256_and_si256(_mm256_castps_si256(value), _mm256_set1_epi32(0x7FFFFFFF));
  }
  static float largest_magnitude(F a, F b) {
    const __m256i eight = _mm256_max_epi32(_mm256_max_epi32(magnitudes(a.low), magnitudes(a.high)),
                                           _mm256_max_epi32(magnitudes(b.low), magnitudes(b.high)));
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1));
    return _mm_cvtss_f32(_mm_castsi128_ps(four));
  }
  static std::int32_t store_codes(std::int8_t* out, F values) {
    const __m256i low = _mm256_cvtps_epi32(values.low);
    const __m256i high = _mm256_cvtps_epi32(values.high);
    const __m256i shorts = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes);
    const __m256i sums = _mm256_add_epi32(low, high);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1));
    return _mm_cvtsi128_si32(four);
  }
};

}  // namespace

constinit const LinearKernels kAvx2Linear = kLinearOf<Avx2>;

}  // namespace pocket
