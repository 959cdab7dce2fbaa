// The packed form of block-quantised weights: what pack.cpp writes and the products read.
//
// Every block format is  w = d * (code - offset) [+ m]  with unsigned codes of a few bits, and d and m per group of 32
// or 16 columns. Rows are packed in strips of 16. A strip is one stream of units of 64 columns in order:
//
//   [scales of the unit][codes of the unit]
//
// Codes come in quads of 4 columns, 64 codes each: code 4 * r + j of a quad is row r, column j. That is the operand
// order of the byte dot products (16 lanes of 4 bytes). In a unit, with line = 64 bytes:
//
//   8 bits    16 lines, a quad each
//   4 bits    8 lines: line l holds quad 8 * (l / 4) + l % 4 in its low nibbles, the quad 4 further in its high ones
//   5 bits    as 4 bits, then 16 planes of 64 bits: bit i of plane c is the fifth bit of code i of quad c
//   2 bits    4 lines: bits 2 * f of line q are quad 4 * q + f
//   3 bits    as 2 bits, then planes of the third bit
//   6 bits    as 4 bits, then as 2 bits for the two upper bits
//
// Scales: 16 values (one per row) of each group. kHalf and kBFloat: d of the unit's two groups, then their m. kSuper:
// one byte each, times the fp16 d (and m) of the super-block, which stand in a line of their own before its four units.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace pocket::cpu {

inline constexpr int kStripRows = 16;
inline constexpr int kUnitColumns = 64;
inline constexpr int kUnitQuads = 16;
inline constexpr int kSuperUnits = 4;
inline constexpr int kLineBytes = 64;

enum class ScaleKind : std::uint8_t { kHalf, kBFloat, kSuper };
// Codes that are indices: IQ4_NL's values + 128, or twice the E2M1 values + 12.
enum class CodeTable : std::uint8_t { kNone, kIQ4, kE2M1 };

struct PackedForm {
  int code_bits = 0;  // 0: not a block format
  CodeTable table = CodeTable::kNone;
  ScaleKind scales = ScaleKind::kHalf;
  int group = 32;  // columns
  bool has_min = false;
  int offset = 0;

  // Codes of more than 7 bits need care where the byte product takes them as signed. Their offset is always 128.
  [[gnu::always_inline]] constexpr bool wide() const { return code_bits == 8 || table == CodeTable::kIQ4; }
  [[gnu::always_inline]] constexpr int unit_groups() const { return kUnitColumns / group; }
  [[gnu::always_inline]] constexpr int scale_bytes() const {
    if (scales != ScaleKind::kSuper) return kLineBytes * (has_min ? 2 : 1);
    const int bytes = unit_groups() * kStripRows * (has_min ? 2 : 1);
    return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
  }
  [[gnu::always_inline]] constexpr int code_bytes() const { return kStripRows * kUnitColumns * code_bits / 8; }
  [[gnu::always_inline]] constexpr int unit_bytes() const { return scale_bytes() + code_bytes(); }
  [[gnu::always_inline]] constexpr std::int64_t strip_bytes(std::int64_t num_units) const {
    return num_units * unit_bytes() + (scales == ScaleKind::kSuper ? num_units / kSuperUnits * kLineBytes : 0);
  }
};

// Functions here are static or always inlined, so that no copy compiled for one instruction set serves another.
static constexpr PackedForm packed_form(DType dtype) {
  using enum ScaleKind;
  switch (dtype) {
    case DType::kQ4_0: return {4, CodeTable::kNone, kHalf, 32, false, 8};
    case DType::kQ4_1: return {4, CodeTable::kNone, kHalf, 32, true, 0};
    case DType::kQ5_0: return {5, CodeTable::kNone, kHalf, 32, false, 16};
    case DType::kQ5_1: return {5, CodeTable::kNone, kHalf, 32, true, 0};
    case DType::kQ8_0: return {8, CodeTable::kNone, kHalf, 32, false, 128};
    case DType::kQ2_K: return {2, CodeTable::kNone, kSuper, 16, true, 0};
    case DType::kQ3_K: return {3, CodeTable::kNone, kSuper, 16, false, 4};
    case DType::kQ4_K: return {4, CodeTable::kNone, kSuper, 32, true, 0};
    case DType::kQ5_K: return {5, CodeTable::kNone, kSuper, 32, true, 0};
    case DType::kQ6_K: return {6, CodeTable::kNone, kSuper, 16, false, 32};
    case DType::kIQ4_NL: return {4, CodeTable::kIQ4, kHalf, 32, false, 128};
    case DType::kIQ4_XS: return {4, CodeTable::kIQ4, kSuper, 32, false, 128};
    case DType::kMXFP4: return {4, CodeTable::kE2M1, kBFloat, 32, false, 12};
    default: return {};
  }
}

static constexpr std::int64_t num_units_of(std::int64_t num_columns) {
  return (num_columns + kUnitColumns - 1) / kUnitColumns;
}

inline constexpr std::uint8_t kIQ4Codes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                               129, 141, 153, 166, 181, 197, 217, 241};
inline constexpr std::uint8_t kE2M1Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

}  // namespace pocket::cpu
