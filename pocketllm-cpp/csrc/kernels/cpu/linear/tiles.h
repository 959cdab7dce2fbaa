// The products over block formats, written once for a vector type V of 16 lanes. Included by linear_<set>.cpp alone,
// each with its own V in an anonymous namespace: nothing compiled for one instruction set is linked into another.
//
// V has: F (16 floats), I (16 int32), B (64 bytes: a chunk), A (4 activation codes in every lane), and the functions
// used below. V::dot<kWide>(acc, codes, a) adds, in each lane, the exact sum of 4 products; wide codes count as
// code - kWideOffset.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear/kernels.h"

namespace pocket {

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

// Chunk `c` of a unit, whose codes are at `codes`.
template <class V, PackedForm kForm, int c>
[[gnu::always_inline]] static inline typename V::B unit_chunk(const std::byte* codes) {
  constexpr int kBits = kForm.code_bits;
  if constexpr (kBits == 8) {
    return V::load_bytes(codes + c * kLineBytes);
  } else if constexpr (kBits < 4) {
    const auto pairs = V::template bit_pair<c % 4>(V::load_bytes(codes + c / 4 * kLineBytes));
    if constexpr (kBits == 3) return V::template or_plane<4>(pairs, codes + 256 + c * 8);
    return pairs;
  } else {
    const auto line = V::load_bytes(codes + (c / 8 * 4 + c % 4) * kLineBytes);
    const auto nibbles = c % 8 < 4 ? V::low_nibbles(line) : V::high_nibbles(line);
    if constexpr (kForm.table == CodeTable::kIQ4) return V::look_up(nibbles, kIQ4Codes);
    if constexpr (kForm.table == CodeTable::kE2M1) return V::look_up(nibbles, kE2M1Codes);
    if constexpr (kBits == 5) return V::template or_plane<16>(nibbles, codes + 512 + c * 8);
    if constexpr (kBits == 6) {
      return V::template or_upper_pair<c % 4>(nibbles, V::load_bytes(codes + 512 + c / 4 * kLineBytes));
    }
    return nibbles;
  }
}

template <class V>
struct GroupScales {
  typename V::F d;
  typename V::F m;
};

// d and m of group `g` of a unit; `super` holds those of its super-block.
template <class V, PackedForm kForm>
[[gnu::always_inline]] static inline GroupScales<V> group_scales(const std::byte* unit, int g,
                                                                 const GroupScales<V>& super) {
  constexpr int kGroups = kForm.unit_groups();
  GroupScales<V> scales = super;
  if constexpr (kForm.scales == ScaleKind::kSuper) {
    scales.d = V::mul(super.d, V::from_i8(unit + kStripRows * g));
    if constexpr (kForm.has_min) scales.m = V::mul(super.m, V::from_i8(unit + kStripRows * (kGroups + g)));
  } else if constexpr (kForm.scales == ScaleKind::kBFloat) {
    scales.d = V::from_bfloat(unit + 2 * kStripRows * g);
  } else {
    scales.d = V::from_half(unit + 2 * kStripRows * g);
    if constexpr (kForm.has_min) scales.m = V::from_half(unit + 2 * kStripRows * (kGroups + g));
  }
  return scales;
}

// Reads the scales that stand before a super-block's four units, and steps over them.
template <class V, PackedForm kForm>
[[gnu::always_inline]] static inline void enter_unit(std::int64_t index, const std::byte*& unit,
                                                     GroupScales<V>& super) {
  if constexpr (kForm.scales == ScaleKind::kSuper) {
    if (index % kSuperUnits != 0) return;
    super.d = V::from_half(unit);
    if constexpr (kForm.has_min) super.m = V::from_half(unit + 2 * kStripRows);
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
[[gnu::always_inline]] static inline typename V::F minus_magic_times(typename V::F d) {
  return V::mul(V::set(-kMagic), d);
}

template <class V, PackedForm kForm>
static void expand_strip(const std::byte* unit, std::int64_t num_units, std::byte* panel) {
  constexpr int kGroupChunks = kForm.group / 4;
  GroupScales<V> super{V::set(0.0f), V::set(0.0f)};
  for (std::int64_t index = 0; index < num_units; ++index) {
    enter_unit<V, kForm>(index, unit, super);
    const std::byte* codes = unit + kForm.scale_bytes();
    unrolled<0, kForm.unit_groups()>([&]<int g>() __attribute__((always_inline)) {
      unrolled<0, kGroupChunks>([&]<int c>() __attribute__((always_inline)) {
        V::store_bytes(panel + c * kLineBytes, unit_chunk<V, kForm, g * kGroupChunks + c>(codes));
      });
      const GroupScales<V> scales = group_scales<V, kForm>(unit, g, super);
      float* floats = reinterpret_cast<float*>(panel + kGroupChunks * kLineBytes);
      V::store(floats, scales.d);
      V::store(floats + kStripRows, minus_magic_times<V>(scales.d));
      if constexpr (kForm.has_min) V::store(floats + 2 * kStripRows, scales.m);
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
  constexpr int kGroupChunks = kForm.group / 4;
  GroupScales<V> super{V::set(0.0f), V::set(0.0f)};
  for (std::int64_t index = 0; index < num_units; ++index) {
    enter_unit<V, kForm>(index, unit, super);
    const std::byte* codes = unit + kForm.scale_bytes();
    unrolled<0, kUnitChunks>([&]<int c>() __attribute__((always_inline)) {
      const GroupScales<V> scales = group_scales<V, kForm>(unit, c / kGroupChunks, super);
      const auto chunk = unit_chunk<V, kForm, c>(codes);
      unrolled<0, 4>([&]<int j>() __attribute__((always_inline)) {
        const auto level = V::add(V::to_float(V::template byte_of_lanes<j>(chunk)), V::set(float{-kForm.offset}));
        const auto product = V::mul(scales.d, level);
        V::store(panel, kForm.has_min ? V::add(product, scales.m) : product);
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
                                                   typename V::F value, float* y) {
  alignas(64) float values[kStripRows];
  V::store(values, value);
  for (std::int64_t i = 0; i < count; ++i) {
    const float sum = bias == nullptr ? values[i] : values[i] + bias[i];
    y[i] = add ? y[i] + sum : sum;
  }
}

// Results of the 16 columns from `column` on, of one row.
template <class V>
[[gnu::always_inline]] static inline void store_output(const ProductOutput& output, int row, std::int64_t column,
                                                       typename V::F value) {
  float* y = output.y + row * output.stride + column;
  const float* bias = output.bias == nullptr ? nullptr : output.bias + column;
  const std::int64_t count = output.num_columns - column;
  if (count < kStripRows) return store_few<V>(bias, output.add, count, value, y);
  if (bias != nullptr) value = V::add(value, V::load(bias));
  if (output.add) value = V::add(V::load(y), value);
  V::store(y, value);
}

// The float part of a group's result (kernels.h has the formula).
template <class V, bool kMin>
[[gnu::always_inline]] static inline typename V::F add_group(typename V::F out, typename V::I acc, typename V::F d,
                                                             typename V::F c, typename V::F m, float sum,
                                                             float scale) {
  auto t = V::fma(V::as_float(acc), d, c);
  if constexpr (kMin) t = V::fma(m, V::set(sum), t);
  return V::fma(t, V::set(scale), out);
}

// kRows activation rows times kStrips panels.
template <class V, int kGroup, bool kMin, bool kWide, int kRows, int kStrips>
static void multiply_tile(const PanelProduct& product, int first_row, const std::byte* next, std::int64_t next_bytes) {
  constexpr int kChunks = kGroup / 4;
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

  typename V::F out[kRows][kStrips];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int s = 0; s < kStrips; ++s) {
      out[r][s] = product.is_first ? V::set(0.0f) : V::load(partial + r * kPartialColumns + s * kStripRows);
    }
  }
  for (std::int64_t g = 0; g < product.num_groups; ++g) {
    typename V::I acc[kRows][kStrips];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int s = 0; s < kStrips; ++s) acc[r][s] = V::set_int(kMin ? kMagicBits : starts[r * rows.group_stride + g]);
    }
    for (const std::byte* end = next + next_step; next < end && next < next_end; next += kLineBytes) {
      __builtin_prefetch(next, 0, 2);
      if constexpr (kStrips > 1) __builtin_prefetch(next + product.next_stride, 0, 2);
    }
#pragma GCC unroll 16
    for (int c = 0; c < kChunks; ++c) {
      typename V::B w[kStrips];
#pragma GCC unroll 16
      for (int s = 0; s < kStrips; ++s) w[s] = V::load_bytes(panel + s * product.panel_bytes + c * kLineBytes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const auto a = V::activations(codes + r * rows.code_stride + 4 * c);
#pragma GCC unroll 16
        for (int s = 0; s < kStrips; ++s) acc[r][s] = V::template dot<kWide>(acc[r][s], w[s], a);
      }
    }
#pragma GCC unroll 16
    for (int s = 0; s < kStrips; ++s) {
      const auto* floats = reinterpret_cast<const float*>(panel + s * product.panel_bytes + kChunks * kLineBytes);
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
    for (int s = 0; s < kStrips; ++s) V::store(partial + r * kPartialColumns + s * kStripRows, out[r][s]);
  }
}

// Calls body.operator()<n>() for n == count, which is in [1, kMost].
template <int kMost, class Body>
static void with_count(int count, Body&& body) {
  if constexpr (kMost > 1) {
    if (count < kMost) return with_count<kMost - 1>(count, body);
  }
  body.template operator()<kMost>();
}

template <class V, int kGroup, bool kMin, bool kWide, int kStrips>
static void multiply_tiles(const PanelProduct& product) {
  constexpr int kMost = V::kTileRows;
  // Tiles of nearly equal height.
  const int num_tiles = (product.num_rows + kMost - 1) / kMost;
  const std::int64_t next_step = (product.next_bytes / num_tiles + kLineBytes) / kLineBytes * kLineBytes;
  for (int tile = 0, row = 0; tile < num_tiles; ++tile) {
    const int count = (product.num_rows - row + num_tiles - tile - 1) / (num_tiles - tile);
    const std::int64_t next = tile * next_step;
    const std::int64_t next_left = product.next_bytes - next;
    const std::int64_t next_bytes = next_left < 0 ? 0 : next_left < next_step ? next_left : next_step;
    with_count<kMost>(count, [&]<int kRows>() {
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
  if (!V::kUnsignedDot && product.wide) return with_strips.template operator()<32, false, !V::kUnsignedDot>();
  with_strips.template operator()<32, false, false>();
}

}  // namespace pocket
