// The products over block formats, for any instruction set's Floats V. Functions are static, and templates over V: none
// that is compiled for one set is linked into another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear/kernels.h"
#include "kernels/cpu/simd/product_tile.h"

namespace pocket::cpu {

// Calls body.template operator()<form>() for the form of a block type.
template <class Body>
static void with_form(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kQ4_0: return body.template operator()<packed_form(DType::kQ4_0)>();
    case DType::kQ4_1: return body.template operator()<packed_form(DType::kQ4_1)>();
    case DType::kQ5_0: return body.template operator()<packed_form(DType::kQ5_0)>();
    case DType::kQ5_1: return body.template operator()<packed_form(DType::kQ5_1)>();
    case DType::kQ8_0: return body.template operator()<packed_form(DType::kQ8_0)>();
    case DType::kQ2_K: return body.template operator()<packed_form(DType::kQ2_K)>();
    case DType::kQ3_K: return body.template operator()<packed_form(DType::kQ3_K)>();
    case DType::kQ4_K: return body.template operator()<packed_form(DType::kQ4_K)>();
    case DType::kQ5_K: return body.template operator()<packed_form(DType::kQ5_K)>();
    case DType::kQ6_K: return body.template operator()<packed_form(DType::kQ6_K)>();
    case DType::kIQ4_NL: return body.template operator()<packed_form(DType::kIQ4_NL)>();
    case DType::kIQ4_XS: return body.template operator()<packed_form(DType::kIQ4_XS)>();
    case DType::kMXFP4: return body.template operator()<packed_form(DType::kMXFP4)>();
    default: return;
  }
}

template <class V>
[[gnu::always_inline]] static inline V load_halves(const std::byte* data) {
  return V::load(reinterpret_cast<const std::uint16_t*>(data));
}

template <class V>
[[gnu::always_inline]] static inline V load_bytes(const std::byte* data) {
  return V::load(reinterpret_cast<const std::int8_t*>(data));
}

// Quad `c` of a unit, whose codes are at `codes`.
template <class V, PackedForm kForm, int c>
[[gnu::always_inline]] static inline typename V::Bytes unit_quad(const std::byte* codes) {
  constexpr int kBits = kForm.code_bits;
  if constexpr (kBits == 8) {
    return V::Bytes::load(codes + c * kLineBytes);
  } else if constexpr (kBits < 4) {
    const auto pairs = V::Bytes::load(codes + c / 4 * kLineBytes).template bit_pair<c % 4>();
    if constexpr (kBits == 3) return pairs.template or_plane<4>(codes + 256 + c * 8);
    return pairs;
  } else {
    const auto line = V::Bytes::load(codes + (c / 8 * 4 + c % 4) * kLineBytes);
    const auto nibbles = c % 8 < 4 ? line.low_nibbles() : line.high_nibbles();
    if constexpr (kForm.table == CodeTable::kIQ4) return nibbles.look_up(kIQ4Codes);
    if constexpr (kForm.table == CodeTable::kE2M1) return nibbles.look_up(kE2M1Codes);
    if constexpr (kBits == 5) return nibbles.template or_plane<16>(codes + 512 + c * 8);
    if constexpr (kBits == 6) {
      return nibbles.template or_upper_pair<c % 4>(V::Bytes::load(codes + 512 + c / 4 * kLineBytes));
    }
    return nibbles;
  }
}

template <class V>
struct GroupScales {
  V d;
  V m;
};

// d and m of group `g` of a unit; `super` holds those of its super-block.
template <class V, PackedForm kForm>
[[gnu::always_inline]] static inline GroupScales<V> group_scales(const std::byte* unit, int g,
                                                                 const GroupScales<V>& super) {
  constexpr int kGroups = kForm.unit_groups();
  GroupScales<V> scales = super;
  if constexpr (kForm.scales == ScaleKind::kSuper) {
    scales.d = super.d * load_bytes<V>(unit + kStripRows * g);
    if constexpr (kForm.has_min) scales.m = super.m * load_bytes<V>(unit + kStripRows * (kGroups + g));
  } else if constexpr (kForm.scales == ScaleKind::kBFloat) {
    scales.d = V::load_bfloat(unit + 2 * kStripRows * g);
  } else {
    scales.d = load_halves<V>(unit + 2 * kStripRows * g);
    if constexpr (kForm.has_min) scales.m = load_halves<V>(unit + 2 * kStripRows * (kGroups + g));
  }
  return scales;
}

// Reads the scales that stand before a super-block's four units, and steps over them.
template <class V, PackedForm kForm>
[[gnu::always_inline]] static inline void enter_unit(std::int64_t index, const std::byte*& unit,
                                                     GroupScales<V>& super) {
  if constexpr (kForm.scales == ScaleKind::kSuper) {
    if (index % kSuperUnits != 0) return;
    super.d = load_halves<V>(unit);
    if constexpr (kForm.has_min) super.m = load_halves<V>(unit + 2 * kStripRows);
    unit += kLineBytes;
  }
}

// Compile-time loop: body.operator()<i>() for i in [kFrom, kTo).
template <int kFrom, int kTo, class Body>
[[gnu::always_inline]] static inline void unrolled(Body&& body) {
  if constexpr (kFrom < kTo) {
    body.template operator()<kFrom>();
    unrolled<kFrom + 1, kTo>(body);
  }
}

template <class V>
[[gnu::always_inline]] static inline V minus_magic_times(V d) {
  return V::broadcast(-kMagic) * d;
}

template <class V, PackedForm kForm>
static void expand_strip(const std::byte* unit, std::int64_t num_units, std::byte* panel) {
  constexpr int kGroupQuads = kForm.group / 4;
  GroupScales<V> super{V::broadcast(0.0f), V::broadcast(0.0f)};
  for (std::int64_t index = 0; index < num_units; ++index) {
    enter_unit<V, kForm>(index, unit, super);
    const std::byte* codes = unit + kForm.scale_bytes();
    unrolled<0, kForm.unit_groups()>([&]<int g>() __attribute__((always_inline)) {
      unrolled<0, kGroupQuads>([&]<int c>() __attribute__((always_inline)) {
        unit_quad<V, kForm, g * kGroupQuads + c>(codes).store(panel + c * kLineBytes);
      });
      const GroupScales<V> scales = group_scales<V, kForm>(unit, g, super);
      float* floats = reinterpret_cast<float*>(panel + kGroupQuads * kLineBytes);
      scales.d.store(floats);
      minus_magic_times(scales.d).store(floats + kStripRows);
      if constexpr (kForm.has_min) scales.m.store(floats + 2 * kStripRows);
      panel += panel_group_bytes(kForm.group, kForm.has_min);
    });
    unit += kForm.unit_bytes();
  }
}

template <class V>
static void expand_codes(DType dtype, const std::byte* strip, std::int64_t num_units, std::byte* panel) {
  with_form(dtype, [&]<PackedForm kForm>() { expand_strip<V, kForm>(strip, num_units, panel); });
}

template <class V, PackedForm kForm>
static void expand_strip_floats(const std::byte* unit, std::int64_t num_units, float* panel) {
  constexpr int kGroupQuads = kForm.group / 4;
  GroupScales<V> super{V::broadcast(0.0f), V::broadcast(0.0f)};
  for (std::int64_t index = 0; index < num_units; ++index) {
    enter_unit<V, kForm>(index, unit, super);
    const std::byte* codes = unit + kForm.scale_bytes();
    unrolled<0, kUnitQuads>([&]<int c>() __attribute__((always_inline)) {
      const GroupScales<V> scales = group_scales<V, kForm>(unit, c / kGroupQuads, super);
      const auto quad = unit_quad<V, kForm, c>(codes);
      unrolled<0, 4>([&]<int j>() __attribute__((always_inline)) {
        const auto level = V::convert(quad.template byte_of_lanes<j>()) + V::broadcast(float{-kForm.offset});
        const auto product = scales.d * level;
        (kForm.has_min ? product + scales.m : product).store(panel);
        panel += kStripRows;
      });
    });
    unit += kForm.unit_bytes();
  }
}

template <class V>
static void expand_floats(DType dtype, const std::byte* strip, std::int64_t num_units, float* panel) {
  with_form(dtype, [&]<PackedForm kForm>() { expand_strip_floats<V, kForm>(strip, num_units, panel); });
}

// The first `count` of 16 results, one by one.
template <class V>
[[gnu::noinline, gnu::cold]] static void store_few(const float* bias, bool add, std::int64_t count,
                                                   V value, float* y) {
  alignas(64) float values[kStripRows];
  value.store(values);
  for (std::int64_t i = 0; i < count; ++i) {
    const float sum = bias == nullptr ? values[i] : values[i] + bias[i];
    y[i] = add ? y[i] + sum : sum;
  }
}

// Results of the 16 columns from `column` on, of one row.
template <class V>
[[gnu::always_inline]] static inline void store_output(const ProductOutput& output, int row, std::int64_t column,
                                                       V value) {
  float* y = output.y + row * output.stride + column;
  const float* bias = output.bias == nullptr ? nullptr : output.bias + column;
  const std::int64_t count = output.num_columns - column;
  if (count < kStripRows) return store_few<V>(bias, output.add, count, value, y);
  if (bias != nullptr) value = value + V::load(bias);
  if (output.add) value = V::load(y) + value;
  value.store(y);
}

// The float part of a group's result (kernels.h has the formula).
template <class V, bool kMin>
[[gnu::always_inline]] static inline V add_group(V out, typename V::Ints acc, V d,
                                                             V c, V m, float sum,
                                                             float scale) {
  auto t = V::fma(V::bit_cast(acc), d, c);
  if constexpr (kMin) t = V::fma(m, V::broadcast(sum), t);
  return V::fma(t, V::broadcast(scale), out);
}

// kRows activation rows times kStrips panels.
template <class V, int kGroup, bool kMin, bool kWide, int kRows, int kStrips>
static void multiply_tile(const PanelProduct& product, int first_row, const std::byte* next, std::int64_t next_bytes) {
  constexpr int kQuads = kGroup / 4;
  const QuantisedRows& rows = product.rows;
  const std::int64_t first = first_row;
  const std::int8_t* codes = rows.codes + first * rows.code_stride;
  const float* row_scales = rows.scales + first * rows.scale_stride;
  const std::int32_t* starts = kMin ? nullptr : rows.starts + first * rows.group_stride;
  const float* sums = kMin ? rows.sums + first * rows.group_stride : nullptr;
  const std::byte* panel = product.panels;
  const std::byte* next_end = next + next_bytes;
  // Evenly over the groups: a burst would find all line buffers taken.
  const std::int64_t next_step = (next_bytes / product.num_groups + kLineBytes) / kLineBytes * kLineBytes;
  float* partial = product.partial + first * kPartialColumns;

  V out[kRows][kStrips];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int s = 0; s < kStrips; ++s) {
      out[r][s] = product.is_first ? V::broadcast(0.0f) : V::load(partial + r * kPartialColumns + s * kStripRows);
    }
  }
  for (std::int64_t g = 0; g < product.num_groups; ++g) {
    typename V::Ints acc[kRows][kStrips];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int s = 0; s < kStrips; ++s) {
        acc[r][s] = V::Ints::broadcast(kMin ? kMagicBits : starts[r * rows.group_stride + g]);
      }
    }
    for (const std::byte* end = next + next_step; next < end && next < next_end; next += kLineBytes) {
      __builtin_prefetch(next, 0, 2);
      if constexpr (kStrips > 1) __builtin_prefetch(next + product.next_stride, 0, 2);
    }
#pragma GCC unroll 16
    for (int c = 0; c < kQuads; ++c) {
      typename V::Bytes w[kStrips];
#pragma GCC unroll 16
      for (int s = 0; s < kStrips; ++s) w[s] = V::Bytes::load(panel + s * product.panel_bytes + c * kLineBytes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const auto a = V::Quad::load(codes + r * rows.code_stride + 4 * c);
#pragma GCC unroll 16
        for (int s = 0; s < kStrips; ++s) acc[r][s] = V::Ints::template dot<kWide>(acc[r][s], w[s], a);
      }
    }
#pragma GCC unroll 16
    for (int s = 0; s < kStrips; ++s) {
      const auto* floats = reinterpret_cast<const float*>(panel + s * product.panel_bytes + kQuads * kLineBytes);
      const auto d = V::load(floats);
      const auto c = V::load(floats + kStripRows);
      const auto m = kMin ? V::load(floats + 2 * kStripRows) : d;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const float scale = row_scales[r * rows.scale_stride + g * kGroup / 32];
        const float sum = kMin ? sums[r * rows.group_stride + g] : 0.0f;
        out[r][s] = add_group<V, kMin>(out[r][s], acc[r][s], d, c, m, sum, scale);
      }
    }
    codes += kGroup;
    panel += panel_group_bytes(kGroup, kMin);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int s = 0; s < kStrips; ++s) out[r][s].store(partial + r * kPartialColumns + s * kStripRows);
  }
}

template <class V, int kGroup, bool kMin, bool kWide, int kStrips>
static void multiply_tiles(const PanelProduct& product) {
  constexpr int kMost = V::Ints::kTileRows;
  // Tiles of nearly equal height.
  const int num_tiles = (product.num_rows + kMost - 1) / kMost;
  const std::int64_t next_step = (product.next_bytes / num_tiles + kLineBytes) / kLineBytes * kLineBytes;
  for (int tile = 0, row = 0; tile < num_tiles; ++tile) {
    const int count = (product.num_rows - row + num_tiles - tile - 1) / (num_tiles - tile);
    const std::int64_t next = tile * next_step;
    const std::int64_t next_left = product.next_bytes - next;
    const std::int64_t next_bytes = next_left < 0 ? 0 : next_left < next_step ? next_left : next_step;
    with_constant<kMost>(count, [&]<int kRows>() {
      multiply_tile<V, kGroup, kMin, kWide, kRows, kStrips>(product, row, product.next + next, next_bytes);
    });
    if (product.is_last) {
      for (int r = row; r < row + count; ++r) {
        for (int s = 0; s < kStrips; ++s) {
          store_output<V>(product.output, r, s * kStripRows,
                          V::load(product.partial + r * kPartialColumns + s * kStripRows));
        }
      }
    }
    row += count;
  }
}

template <class V>
static void multiply_panels(const PanelProduct& product) {
  const auto with_strips = [&]<int kGroup, bool kMin, bool kWide>() {
    if (product.num_strips == 1) return multiply_tiles<V, kGroup, kMin, kWide, 1>(product);
    multiply_tiles<V, kGroup, kMin, kWide, kPanelStrips>(product);
  };
  if (product.group == 16 && product.has_min) return with_strips.template operator()<16, true, false>();
  if (product.group == 16) return with_strips.template operator()<16, false, false>();
  if (product.has_min) return with_strips.template operator()<32, true, false>();
  constexpr bool kSignedDot = !V::Ints::kUnsignedDot;
  if (kSignedDot && product.wide) return with_strips.template operator()<32, false, kSignedDot>();
  with_strips.template operator()<32, false, false>();
}

}  // namespace pocket::cpu
