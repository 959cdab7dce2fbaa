// GGUF's block formats as stored: their one definition, which the dequantiser and the packer share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace pocket::cpu {

// One block, taken apart: value of element i = d * scales[g] * (level(code) - offset) + m * mins[g], where g is the
// element's group, and scales and mins are 1 in formats without super-blocks (packed_form.h has offsets and groups).
struct WeightBlock {
  std::uint8_t codes[256];  // block_elements of them, in the order of elements
  std::uint16_t d;          // fp16 bits; bf16 bits for MXFP4
  std::uint16_t m;          // fp16 bits, sign already as added
  std::int8_t scales[16];
  std::int8_t mins[16];
};

// Blocks of 32 are d, m, fifth bits and codes one after the other; -1 for what a format lacks. Codes are 32 bytes, or
// 16 whose low nibbles are elements 0 to 15 and whose high ones are 16 to 31; bit i of the fifth bits is element i's.
struct SmallBlockLayout {
  int m = -1;
  int fifth_bits = -1;
  int codes = 0;
};
SmallBlockLayout small_block_layout(DType dtype) noexcept;

// The scale of a block of 32: fp16 bits, bf16 bits for MXFP4.
std::uint16_t small_block_scale(DType dtype, const std::byte* data) noexcept;

// Takes the block at `data` apart. `dtype` must be a block type.
void read_block(DType dtype, const std::byte* data, WeightBlock& block) noexcept;

}  // namespace pocket::cpu
