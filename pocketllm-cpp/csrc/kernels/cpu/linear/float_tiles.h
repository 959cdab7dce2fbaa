// The products over plain weight types and the quantisation of activation rows, for any instruction set's Floats V.
#pragma once

#include "kernels/cpu/linear/row.h"
#include "kernels/cpu/linear/tiles.h"

namespace pocket::cpu {

template <class V, DType kType>
[[gnu::always_inline]] static inline V load_plain(const std::byte* data) {
  if constexpr (kType == DType::kF32) {
    return V::load(reinterpret_cast<const float*>(data));
  } else if constexpr (kType == DType::kF16) {
    return load_halves<V>(data);
  } else if constexpr (kType == DType::kBF16) {
    return V::load_bfloat(data);
  } else {
    return V::load_e4m3(data);
  }
}

template <class V, DType kType, int kRows, int kStrips>
static void multiply_float_tile(const FloatProduct& product, int first_row, std::int64_t first_strip) {
  constexpr int kElementBytes = kType == DType::kF32 ? 4 : kType == DType::kF8E4M3 ? 1 : 2;
  constexpr bool kScaled = kType == DType::kF8E4M3;
  const float* x = product.x + first_row * product.x_stride;
  const std::byte* strips = product.strips + first_strip * product.strip_bytes;
  const std::byte* w = strips;
  const auto* scales = reinterpret_cast<const float*>(strips + plain_code_bytes(product.num_columns, kElementBytes));
  V out[kRows][kStrips];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int s = 0; s < kStrips; ++s) out[r][s] = V::broadcast(0.0f);
  }
  for (std::int64_t column = 0; column < product.num_columns;) {
    std::int64_t end = product.num_columns;
    V scale[kStrips];
    if constexpr (kScaled) {
      end = column + product.scale_columns < end ? column + product.scale_columns : end;
#pragma GCC unroll 16
      for (int s = 0; s < kStrips; ++s) {
        scale[s] = V::load(scales + s * product.strip_bytes / static_cast<std::int64_t>(sizeof(float)));
      }
      scales += kStripRows;
    }
    for (; column < end; ++column) {
      V weights[kStrips];
#pragma GCC unroll 16
      for (int s = 0; s < kStrips; ++s) {
        weights[s] = load_plain<V, kType>(w + s * product.strip_bytes);
        if constexpr (kScaled) weights[s] = weights[s] * scale[s];
      }
      w += kStripRows * kElementBytes;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const auto value = V::broadcast(x[r * product.x_stride + column]);
#pragma GCC unroll 16
        for (int s = 0; s < kStrips; ++s) out[r][s] = V::fma(value, weights[s], out[r][s]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int s = 0; s < kStrips; ++s) {
      store_output<V>(product.output, first_row + r, (first_strip + s) * kStripRows, out[r][s]);
    }
  }
}

template <class V, DType kType, int kStrips>
static std::int64_t multiply_float_strips(const FloatProduct& product, std::int64_t strip) {
  for (; strip + kStrips <= product.num_strips; strip += kStrips) {
    for (int row = 0; row < product.num_rows; row += V::kTileRows) {
      with_constant<V::kTileRows>(product.num_rows - row, [&]<int kRows>() {
        multiply_float_tile<V, kType, kRows, kStrips>(product, row, strip);
      });
    }
  }
  return strip;
}

template <class V, DType kType>
static void multiply_floats_of(const FloatProduct& product) {
  std::int64_t strip = 0;
  // One row has few accumulators: more strips side by side hide the latency of their chains.
  if (product.num_rows == 1) {
    for (; strip + V::kRowColumns <= product.num_strips; strip += V::kRowColumns) {
      multiply_float_tile<V, kType, 1, V::kRowColumns>(product, 0, strip);
    }
  }
  strip = multiply_float_strips<V, kType, V::kWeightTileColumns>(product, strip);
  multiply_float_strips<V, kType, 1>(product, strip);
}

template <class V>
static void multiply_floats(const FloatProduct& product) {
  switch (product.dtype) {
    case DType::kF32: return multiply_floats_of<V, DType::kF32>(product);
    case DType::kF16: return multiply_floats_of<V, DType::kF16>(product);
    case DType::kBF16: return multiply_floats_of<V, DType::kBF16>(product);
    default: return multiply_floats_of<V, DType::kF8E4M3>(product);
  }
}

// scale = largest magnitude / 127, code = x * (127 / largest) to nearest, ties to even. The largest is found among bit
// patterns, so that a NaN or an infinity reaches the scale and thereby the result.
template <class V>
static void quantise_unit(const float* x, std::int8_t* codes, float* scales, std::int32_t* sums) {
  for (int g = 0; g < kUnitColumns / 32; ++g) {
    const V first = V::load(x + 32 * g);
    const V second = V::load(x + 32 * g + 16);
    const float largest = V::largest_magnitude(first, second);
    // Below this, 127 / largest would overflow: such a group counts as zero.
    const float inverse = largest < 0x1p-100f ? 0.0f : 127.0f / largest;
    scales[g] = inverse == 0.0f ? largest * 0.0f : largest / 127.0f;
    const V factor = V::broadcast(inverse);
    sums[2 * g] = (first * factor).store_codes(codes + 32 * g);
    sums[2 * g + 1] = (second * factor).store_codes(codes + 32 * g + 16);
  }
}

template <class V>
static void quantise_row(const float* x, std::int64_t num_columns, std::int8_t* codes, float* scales,
                         std::int32_t* sums) {
  const std::int64_t num_whole = num_columns / kUnitColumns;
  for (std::int64_t unit = 0; unit < num_whole; ++unit) {
    quantise_unit<V>(x + unit * kUnitColumns, codes + unit * kUnitColumns, scales + 2 * unit, sums + 4 * unit);
  }
  const std::int64_t left = num_columns % kUnitColumns;
  if (left == 0) return;
  alignas(64) float padded[kUnitColumns];
  for (std::int64_t i = 0; i < kUnitColumns; ++i) padded[i] = i < left ? x[num_whole * kUnitColumns + i] : 0.0f;
  quantise_unit<V>(padded, codes + num_whole * kUnitColumns, scales + 2 * num_whole, sums + 4 * num_whole);
}

}  // namespace pocket::cpu
