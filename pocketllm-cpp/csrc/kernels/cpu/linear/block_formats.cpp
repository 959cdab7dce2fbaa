#include "kernels/cpu/linear/block_formats.h"

#include <cstring>
#include <string>

#include "core/error.h"
#include "core/half.h"
#include "kernels/cpu/linear/packed_form.h"
#include "kernels/dequantize.h"

namespace pocket::cpu {
namespace {

std::uint16_t read_u16(const std::uint8_t* data) {
  return static_cast<std::uint16_t>(data[0] | (data[1] << 8));
}

std::uint32_t read_u32(const std::uint8_t* data) {
  return static_cast<std::uint32_t>(read_u16(data)) | (static_cast<std::uint32_t>(read_u16(data + 2)) << 16);
}

std::uint16_t negated(std::uint16_t half) { return static_cast<std::uint16_t>(half ^ 0x8000u); }

// Low nibbles of `count` bytes, then their high nibbles.
void split_nibbles(const std::uint8_t* data, int count, std::uint8_t* codes) {
  for (int i = 0; i < count; ++i) {
    codes[i] = data[i] & 15;
    codes[count + i] = data[i] >> 4;
  }
}

// Q4_K's and Q5_K's twelve bytes: eight 6-bit scales and eight 6-bit mins.
void read_six_bit_scales(const std::uint8_t* data, WeightBlock& block) {
  for (int j = 0; j < 4; ++j) {
    block.scales[j] = static_cast<std::int8_t>(data[j] & 63);
    block.mins[j] = static_cast<std::int8_t>(data[j + 4] & 63);
    block.scales[j + 4] = static_cast<std::int8_t>((data[j + 8] & 15) | ((data[j] >> 6) << 4));
    block.mins[j + 4] = static_cast<std::int8_t>((data[j + 8] >> 4) | ((data[j + 4] >> 6) << 4));
  }
}

// Two bits each of 256 elements: each 32 bytes hold four runs of 32.
void read_two_bits(const std::uint8_t* data, std::uint8_t* codes) {
  for (int run = 0; run < 8; ++run) {
    const std::uint8_t* source = data + run / 4 * 32;
    const int shift = run % 4 * 2;
    for (int i = 0; i < 32; ++i) codes[run * 32 + i] = (source[i] >> shift) & 3;
  }
}

void read_q2_k(const std::uint8_t* data, WeightBlock& block) {
  for (int g = 0; g < 16; ++g) {
    block.scales[g] = static_cast<std::int8_t>(data[g] & 15);
    block.mins[g] = static_cast<std::int8_t>(data[g] >> 4);
  }
  read_two_bits(data + 16, block.codes);
  block.d = read_u16(data + 80);
  block.m = negated(read_u16(data + 82));
}

void read_q3_k(const std::uint8_t* data, WeightBlock& block) {
  read_two_bits(data + 32, block.codes);
  for (int run = 0; run < 8; ++run) {
    for (int i = 0; i < 32; ++i) {
      std::uint8_t& code = block.codes[run * 32 + i];
      code = static_cast<std::uint8_t>(code | (((data[i] >> run) & 1) << 2));
    }
  }
  const std::uint8_t* scales = data + 96;
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
    const int high = (scales[8 + g % 4] >> (g / 4 * 2)) & 3;
    block.scales[g] = static_cast<std::int8_t>((low | (high << 4)) - 32);
  }
  block.d = read_u16(data + 108);
}

void read_q4_k(const std::uint8_t* data, WeightBlock& block) {
  block.d = read_u16(data);
  block.m = negated(read_u16(data + 2));
  read_six_bit_scales(data + 4, block);
  for (int run = 0; run < 4; ++run) split_nibbles(data + 16 + run * 32, 32, block.codes + run * 64);
}

void read_q5_k(const std::uint8_t* data, WeightBlock& block) {
  block.d = read_u16(data);
  block.m = negated(read_u16(data + 2));
  read_six_bit_scales(data + 4, block);
  for (int run = 0; run < 4; ++run) split_nibbles(data + 48 + run * 32, 32, block.codes + run * 64);
  for (int run = 0; run < 8; ++run) {
    for (int i = 0; i < 32; ++i) {
      std::uint8_t& code = block.codes[run * 32 + i];
      code = static_cast<std::uint8_t>(code | (((data[16 + i] >> run) & 1) << 4));
    }
  }
}

void read_q6_k(const std::uint8_t* data, WeightBlock& block) {
  for (int half = 0; half < 2; ++half) {
    std::uint8_t* codes = block.codes + half * 128;
    split_nibbles(data + half * 64, 64, codes);
    const std::uint8_t* upper = data + 128 + half * 32;
    for (int run = 0; run < 4; ++run) {
      for (int i = 0; i < 32; ++i) {
        std::uint8_t& code = codes[run * 32 + i];
        code = static_cast<std::uint8_t>(code | (((upper[i] >> (run * 2)) & 3) << 4));
      }
    }
  }
  std::memcpy(block.scales, data + 192, 16);
  block.d = read_u16(data + 208);
}

void read_iq4_xs(const std::uint8_t* data, WeightBlock& block) {
  block.d = read_u16(data);
  const std::uint16_t high = read_u16(data + 2);
  for (int g = 0; g < 8; ++g) {
    const int low = (data[4 + g / 2] >> (g % 2 * 4)) & 15;
    block.scales[g] = static_cast<std::int8_t>((low | (((high >> (2 * g)) & 3) << 4)) - 32);
    split_nibbles(data + 8 + g * 16, 16, block.codes + g * 32);
  }
}

// The bf16 bits of 2^(exponent - 128): the E8M0 scale of the doubled E2M1 values, halved. ggml reads 255 as 2^127.
std::uint16_t halved_e8m0(std::uint8_t exponent) {
  if (exponent < 2) return static_cast<std::uint16_t>(0x20u << exponent);
  return static_cast<std::uint16_t>((exponent - 1u) << 7);
}

void read_small_block(DType dtype, const std::uint8_t* data, WeightBlock& block) {
  const SmallBlockLayout layout = small_block_layout(dtype);
  block.d = small_block_scale(dtype, reinterpret_cast<const std::byte*>(data));
  if (layout.m >= 0) block.m = read_u16(data + layout.m);
  const std::uint8_t* codes = data + layout.codes;
  if (dtype == DType::kQ8_0) {
    for (int i = 0; i < 32; ++i) block.codes[i] = codes[i] ^ 0x80;  // signed as stored
    return;
  }
  split_nibbles(codes, 16, block.codes);
  if (layout.fifth_bits < 0) return;
  const std::uint32_t bits = read_u32(data + layout.fifth_bits);
  for (int i = 0; i < 32; ++i) block.codes[i] = static_cast<std::uint8_t>(block.codes[i] | (((bits >> i) & 1u) << 4));
}

float level(const PackedForm& form, std::uint8_t code) {
  switch (form.table) {
    case CodeTable::kIQ4: return static_cast<float>(kIQ4Codes[code] - form.offset);
    case CodeTable::kE2M1: return static_cast<float>(kE2M1Codes[code] - form.offset);
    default: return static_cast<float>(code - form.offset);
  }
}

void dequantize_block(const PackedForm& form, const WeightBlock& block, int num_elements, float* out) {
  const bool super = form.scales == ScaleKind::kSuper;
  const float d = form.scales == ScaleKind::kBFloat ? bfloat_to_float(block.d) : half_to_float(block.d);
  const float m = form.has_min ? half_to_float(block.m) : 0.0f;
  for (int first = 0; first < num_elements; first += form.group) {
    const int g = first / form.group;
    const float group_d = super ? d * static_cast<float>(block.scales[g]) : d;
    const float group_m = super ? m * static_cast<float>(block.mins[g]) : m;
    for (int i = first; i < first + form.group; ++i) {
      const float value = group_d * level(form, block.codes[i]);
      out[i] = form.has_min ? value + group_m : value;
    }
  }
}

}  // namespace

SmallBlockLayout small_block_layout(DType dtype) noexcept {
  switch (dtype) {
    case DType::kQ4_1: return {2, -1, 4};
    case DType::kQ5_0: return {-1, 2, 6};
    case DType::kQ5_1: return {2, 4, 8};
    case DType::kMXFP4: return {-1, -1, 1};
    default: return {-1, -1, 2};
  }
}

std::uint16_t small_block_scale(DType dtype, const std::byte* data) noexcept {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data);
  return dtype == DType::kMXFP4 ? halved_e8m0(bytes[0]) : read_u16(bytes);
}

void read_block(DType dtype, const std::byte* bytes, WeightBlock& block) noexcept {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes);
  switch (dtype) {
    case DType::kQ2_K: return read_q2_k(data, block);
    case DType::kQ3_K: return read_q3_k(data, block);
    case DType::kQ4_K: return read_q4_k(data, block);
    case DType::kQ5_K: return read_q5_k(data, block);
    case DType::kQ6_K: return read_q6_k(data, block);
    case DType::kIQ4_XS: return read_iq4_xs(data, block);
    default: return read_small_block(dtype, data, block);
  }
}

}  // namespace pocket::cpu

namespace pocket {

void dequantize_row(DType dtype, const std::byte* data, std::int64_t num_elements, float* out) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data);
  switch (dtype) {
    case DType::kF32: std::memcpy(out, data, static_cast<std::size_t>(num_elements) * sizeof(float)); return;
    case DType::kF16:
      for (std::int64_t i = 0; i < num_elements; ++i) out[i] = half_to_float(cpu::read_u16(bytes + 2 * i));
      return;
    case DType::kBF16:
      for (std::int64_t i = 0; i < num_elements; ++i) out[i] = bfloat_to_float(cpu::read_u16(bytes + 2 * i));
      return;
    case DType::kF8E4M3:
      for (std::int64_t i = 0; i < num_elements; ++i) out[i] = e4m3_to_float(bytes[i]);
      return;
    default: break;
  }
  const cpu::PackedForm form = cpu::packed_form(dtype);
  const DTypeInfo& type = info(dtype);
  if (form.code_bits == 0) {
    throw Error(ErrorKind::kUnsupportedFeature,
                "dtype " + std::string(type.name) + " is not a type of weights; convert the tensor to one that is");
  }
  cpu::WeightBlock block;
  for (std::int64_t first = 0; first < num_elements; first += type.block_elements) {
    cpu::read_block(dtype, data, block);
    cpu::dequantize_block(form, block, type.block_elements, out + first);
    data += type.block_bytes;
  }
}

}  // namespace pocket
