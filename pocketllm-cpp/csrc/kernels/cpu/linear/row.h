// The product of one activation row with packed strips, for any instruction set's Floats V. Memory bounds it, so the codes
// are expanded in registers.
#pragma once

#include "kernels/cpu/linear/tiles.h"

namespace pocket::cpu {

// Bytes between what is read and what is asked for: the time of a read from memory at full speed.
inline constexpr int kPrefetchBytes = 2048;

// The exact sum of a group's products, added to `start`.
template <class V, PackedForm kForm, int kFirstQuad>
[[gnu::always_inline]] static inline typename V::Ints group_product(const std::byte* unit_codes, const std::int8_t* a,
                                                                 typename V::Ints start) {
  constexpr int kQuads = kForm.group / 4;
  if constexpr (V::Ints::kUnsignedDot && kForm.code_bits == 4 && kForm.table == CodeTable::kNone) {
    // High nibbles in place are 16 times the codes: one shift of their sum replaces the shift of every line.
    auto high = V::Ints::broadcast(0);
    unrolled<0, 4>([&]<int c>() __attribute__((always_inline)) {
      const auto line = V::Bytes::load(unit_codes + (kFirstQuad / 2 + c) * kLineBytes);
      start = V::Ints::template dot<false>(start, line.low_nibbles(), V::Quad::load(a + 4 * c));
      high = V::Ints::template dot<false>(high, line.high_nibbles_in_place(), V::Quad::load(a + 16 + 4 * c));
    });
    return start + high.sixteenth();
  } else if constexpr (V::Ints::kSlowDot) {
    auto odd = V::Ints::broadcast(0);
    unrolled<0, kQuads / 2>([&]<int c>() __attribute__((always_inline)) {
      start = V::Ints::template dot<kForm.wide()>(start, unit_quad<V, kForm, kFirstQuad + 2 * c>(unit_codes),
                                                  V::Quad::load(a + 8 * c));
      odd = V::Ints::template dot<kForm.wide()>(odd, unit_quad<V, kForm, kFirstQuad + 2 * c + 1>(unit_codes),
                                                V::Quad::load(a + 8 * c + 4));
    });
    return start + odd;
  } else {
    unrolled<0, kQuads>([&]<int c>() __attribute__((always_inline)) {
      start = V::Ints::template dot<kForm.wide()>(start, unit_quad<V, kForm, kFirstQuad + c>(unit_codes),
                                                  V::Quad::load(a + 4 * c));
    });
    return start;
  }
}

template <class V, PackedForm kForm>
static void multiply_row_form(const RowProduct& product) {
  constexpr int kGroups = kForm.unit_groups();
  const std::byte* unit = product.strips;
  for (std::int64_t strip = 0; strip < product.num_strips; ++strip) {
    const std::int8_t* codes = product.row.codes;
    const float* scales = product.row.scales;
    const std::int32_t* starts = product.row.starts;
    const float* sums = product.row.sums;
    GroupScales<V> super{V::broadcast(0.0f), V::broadcast(0.0f)};
    auto out = V::broadcast(0.0f);
    for (std::int64_t index = 0; index < product.num_units; ++index) {
      enter_unit<V, kForm>(index, unit, super);
      unrolled<0, kForm.unit_bytes() / kLineBytes>([&]<int line>() __attribute__((always_inline)) {
        __builtin_prefetch(unit + kPrefetchBytes + line * kLineBytes, 0, 3);
      });
      unrolled<0, kGroups>([&]<int g>() __attribute__((always_inline)) {
        const auto start = V::Ints::broadcast(kForm.has_min ? kMagicBits : starts[g]);
        const auto acc = group_product<V, kForm, g * kForm.group / 4>(unit + kForm.scale_bytes(),
                                                                     codes + g * kForm.group, start);
        const GroupScales<V> group = group_scales<V, kForm>(unit, g, super);
        out = add_group<V, kForm.has_min>(out, acc, group.d, minus_magic_times(group.d), group.m,
                                          kForm.has_min ? sums[g] : 0.0f, scales[g * kForm.group / 32]);
      });
      unit += kForm.unit_bytes();
      codes += kUnitColumns;
      scales += kUnitColumns / 32;
      if constexpr (kForm.has_min) {
        sums += kGroups;
      } else {
        starts += kGroups;
      }
    }
    store_output<V>(product.output, 0, strip * kStripRows, out);
  }
}

template <class V>
static void multiply_row(const RowProduct& product) {
  with_form(product.dtype, [&]<PackedForm kForm>() { multiply_row_form<V, kForm>(product); });
}

}  // namespace pocket::cpu
