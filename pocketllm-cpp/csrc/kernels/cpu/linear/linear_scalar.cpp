// The products in portable code: the reference of the vectorised ones, and what runs where none of them can.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/half.h"
#include "kernels/cpu/linear/float_tiles.h"

namespace pocket {
namespace {

struct Scalar {
  struct F { float v[16]; };
  struct I { std::int32_t v[16]; };
  struct B { std::uint8_t v[64]; };
  struct A { std::int8_t v[4]; };

  static constexpr bool kUnsignedDot = false;
  static constexpr int kWideOffset = 0;
  static constexpr int kTileRows = 2;
  static constexpr int kFloatTileRows = 2;
  static constexpr int kFloatTileStrips = 2;
  static constexpr int kFloatRowStrips = 2;

  // Not inlined: the templates unroll so much that a compiler would drown in loops of this form.
  template <class Out, class Function>
  [[gnu::noinline]] static Out each(Function function) {
    Out out;
    for (std::size_t i = 0; i < std::size(out.v); ++i) {
      out.v[i] = static_cast<std::remove_reference_t<decltype(out.v[i])>>(function(i));
    }
    return out;
  }
  template <class T>
  static T read(const void* data) {
    T value;
    std::memcpy(&value, data, sizeof value);
    return value;
  }

  static F set(float value) { return each<F>([=](std::size_t) { return value; }); }
  static F load(const float* data) { return read<F>(data); }
  static void store(float* out, const F& value) { std::memcpy(out, &value, sizeof value); }
  static F add(const F& a, const F& b) { return each<F>([&](std::size_t i) { return a.v[i] + b.v[i]; }); }
  static F mul(const F& a, const F& b) { return each<F>([&](std::size_t i) { return a.v[i] * b.v[i]; }); }
  static F fma(const F& a, const F& b, const F& c) {
    return each<F>([&](std::size_t i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  static F from_half(const std::byte* data) {
    return each<F>([=](std::size_t i) { return half_to_float(read<std::uint16_t>(data + 2 * i)); });
  }
  static F from_bfloat(const std::byte* data) {
    return each<F>([=](std::size_t i) { return bfloat_to_float(read<std::uint16_t>(data + 2 * i)); });
  }
  static F from_e4m3(const std::byte* data) {
    return each<F>([=](std::size_t i) { return e4m3_to_float(static_cast<std::uint8_t>(data[i])); });
  }
  static F from_i8(const std::byte* data) {
    return each<F>([=](std::size_t i) { return static_cast<float>(static_cast<std::int8_t>(data[i])); });
  }
  static F as_float(const I& value) { return std::bit_cast<F>(value); }
  static F to_float(const I& value) {
    return each<F>([&](std::size_t i) { return static_cast<float>(value.v[i]); });
  }

  static I set_int(std::int32_t value) { return each<I>([=](std::size_t) { return value; }); }
  static I add_int(const I& a, const I& b) { return each<I>([&](std::size_t i) { return a.v[i] + b.v[i]; }); }
  template <bool kWide>
  static I dot(const I& acc, const B& codes, const A& a) {
    return each<I>([&](std::size_t i) {
      std::int32_t sum = acc.v[i];
      for (std::size_t j = 0; j < 4; ++j) sum += codes.v[4 * i + j] * a.v[j];
      return sum;
    });
  }
  static A activations(const std::int8_t* data) { return read<A>(data); }

  static B load_bytes(const std::byte* data) { return read<B>(data); }
  static void store_bytes(std::byte* out, const B& value) { std::memcpy(out, &value, sizeof value); }
  static B low_nibbles(const B& b) { return each<B>([&](std::size_t i) { return b.v[i] & 15; }); }
  static B high_nibbles(const B& b) { return each<B>([&](std::size_t i) { return b.v[i] >> 4; }); }
  static B look_up(const B& b, const std::uint8_t (&table)[16]) {
    return each<B>([&](std::size_t i) { return table[b.v[i]]; });
  }
  template <int kField>
  static B bit_pair(const B& b) {
    return each<B>([&](std::size_t i) { return (b.v[i] >> (2 * kField)) & 3; });
  }
  template <int kField>
  static B or_upper_pair(const B& b, const B& pairs) {
    return each<B>([&](std::size_t i) { return b.v[i] | (((pairs.v[i] >> (2 * kField)) & 3) << 4); });
  }
  template <int kValue>
  static B or_plane(const B& b, const std::byte* plane) {
    const auto bits = read<std::uint64_t>(plane);
    return each<B>([&](std::size_t i) { return b.v[i] | (((bits >> i) & 1) * kValue); });
  }
  template <int kByte>
  static I byte_of_lanes(const B& b) {
    return each<I>([&](std::size_t i) { return b.v[4 * i + kByte]; });
  }

  static float largest_magnitude(const F& a, const F& b) {
    std::uint32_t largest = 0;
    for (const float value : a.v) largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu);
    for (const float value : b.v) largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu);
    return std::bit_cast<float>(largest);
  }
  static std::int32_t store_codes(std::int8_t* out, const F& values) {
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < 16; ++i) {
      // Within [-127, 127] but for NaN, whose scale carries it on.
      const float value = values.v[i] == values.v[i] ? std::nearbyint(values.v[i]) : 0.0f;
      out[i] = static_cast<std::int8_t>(value);
      sum += out[i];
    }
    return sum;
  }
};

}  // namespace

constinit const LinearKernels kScalarLinear = kLinearOf<Scalar>;

}  // namespace pocket
