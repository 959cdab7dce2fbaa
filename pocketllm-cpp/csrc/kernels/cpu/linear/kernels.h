// The inner loops of the products, one table per instruction set.
//
// Per output element and group of columns, in the order of groups, all of them compute the same IEEE operations:
//
//   acc   = sum over the group of code * activation code, exact in integers, minus offset * (sum of activation codes)
//   t     = fma(kMagic + acc, d, -kMagic * d)          acc * d, rounded once: the sum is exact, formed as integer bits
//   t     = fma(m, sum of activation codes, t)         for formats with a min
//   out   = fma(t, activation scale, out)
//
// and plain weights:  out = fma(x, w, out)  in the order of columns. So every tile shape, thread count and instruction
// set gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "kernels/cpu/linear/packed_form.h"

namespace pocket::cpu {

// 1.5 * 2^23: an integer below 2^22 in magnitude added to its bits is that integer added to its value.
inline constexpr float kMagic = 12582912.0f;
inline constexpr std::int32_t kMagicBits = 0x4B400000;

// Quantised activation rows, padded to whole units with zeros. Strides are in elements, from row to row.
struct QuantisedRows {
  const std::int8_t* codes;
  std::int64_t code_stride;
  const float* scales;  // per 32 columns
  std::int64_t scale_stride;
  // Per group of the weights' format: the accumulator's start, kMagicBits - offset * sum, or in formats with a min the
  // sum of the activation codes.
  const std::int32_t* starts;
  const float* sums;
  std::int64_t group_stride;
};

// Where results go: y[row * stride + column], + bias[column], added to what is there or not.
struct ProductOutput {
  float* y;
  std::int64_t stride;
  const float* bias;
  bool add;
  std::int64_t num_columns;  // of y from here on; the strips may reach beyond
};

// A strip with its codes expanded to bytes. Per group of columns: [codes][d][-kMagic * d][m, in formats with a min].
static constexpr int panel_group_bytes(int group, bool has_min) {
  return group * kStripRows + kLineBytes * (has_min ? 3 : 2);
}

// All columns, or a block of them: then partial results wait in `partial` for the next block.
struct PanelProduct {
  int group;  // these three as in PackedForm
  bool has_min;
  bool wide;
  const std::byte* panels;
  std::int64_t panel_bytes;
  int num_strips;  // at most kPanelStrips
  std::int64_t num_groups;
  QuantisedRows rows;  // from the block's first column on
  int num_rows;
  float* partial;  // [num_rows][kPanelStrips * 16]
  bool is_first;   // block: `partial` holds nothing yet
  bool is_last;    // block: results go to `output`
  ProductOutput output;
  // Packed bytes wanted next are brought into the cache meanwhile: so many of each strip, strips next_stride apart.
  const std::byte* next;
  std::int64_t next_bytes;
  std::int64_t next_stride;
};
inline constexpr int kPanelStrips = 2;
inline constexpr int kPartialColumns = kPanelStrips * kStripRows;

// One activation row times packed strips that lie one after the other.
struct RowProduct {
  DType dtype;
  const std::byte* strips;
  std::int64_t num_strips;
  std::int64_t num_units;
  QuantisedRows row;
  ProductOutput output;
};

struct FloatProduct {
  DType dtype;  // a plain type
  const std::byte* strips;
  std::int64_t strip_bytes;
  std::int64_t num_strips;
  std::int64_t num_columns;
  std::int64_t scale_columns;  // F8_E4M3: the columns of one scale
  const float* x;
  std::int64_t x_stride;
  int num_rows;
  ProductOutput output;
};

struct LinearKernels {
  // What the byte product already subtracts from every wide code (0 or 128): the accumulators leave it out.
  int wide_offset;
  // Rows of num_columns floats to codes, scales per 32 and sums of codes per 16, over whole units.
  void (*quantise_row)(const float* x, std::int64_t num_columns, std::int8_t* codes, float* scales,
                       std::int32_t* sums);
  void (*expand_codes)(DType dtype, const std::byte* strip, std::int64_t num_units, std::byte* panel);
  // To floats [column][16 rows], by the format's definition.
  void (*expand_floats)(DType dtype, const std::byte* strip, std::int64_t num_units, float* panel);
  void (*multiply_panels)(const PanelProduct& product);
  void (*multiply_row)(const RowProduct& product);
  void (*multiply_floats)(const FloatProduct& product);
};

template <class V>
struct LinearKernelsOf {
  static const LinearKernels& table() noexcept;
};

// The bytes of F8_E4M3 strips: codes [column][16 rows] to a whole line, then float scales [tile of columns][16 rows].
static constexpr std::int64_t plain_code_bytes(std::int64_t num_columns, int element_bytes) {
  return (num_columns * kStripRows * element_bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

}  // namespace pocket::cpu
