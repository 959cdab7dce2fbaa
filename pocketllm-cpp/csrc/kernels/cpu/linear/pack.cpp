#include "kernels/cpu/linear/pack.h"

#include <cstring>

#include "kernels/cpu/linear/block_formats.h"

namespace pocket::cpu {
namespace {

using Codes = const std::uint8_t* const*;  // [kStripRows], each at the unit's 64 codes of that row

std::uint32_t four_codes(const std::uint8_t* codes) {
  std::uint32_t value;
  std::memcpy(&value, codes, sizeof value);
  return value;
}

void put_four(std::uint8_t* line, int row, std::uint32_t value) { std::memcpy(line + 4 * row, &value, sizeof value); }

// The low four bits.
void pack_nibbles(Codes codes, std::uint8_t* out) {
  constexpr std::uint32_t kLow = 0x0F0F0F0Fu;
  for (int row = 0; row < kStripRows; ++row) {
    for (int line = 0; line < 8; ++line) {
      const std::uint8_t* source = codes[row] + 32 * (line / 4) + 4 * (line % 4);
      const std::uint32_t low = four_codes(source) & kLow;
      const std::uint32_t high = four_codes(source + 16) & kLow;
      put_four(out + line * kLineBytes, row, low | (high << 4));
    }
  }
}

// The two bits from `shift` up.
void pack_bit_pairs(Codes codes, int shift, std::uint8_t* out) {
  for (int row = 0; row < kStripRows; ++row) {
    for (int line = 0; line < 4; ++line) {
      std::uint32_t value = 0;
      for (int field = 0; field < 4; ++field) {
        value |= ((four_codes(codes[row] + 16 * line + 4 * field) >> shift) & 0x03030303u) << (2 * field);
      }
      put_four(out + line * kLineBytes, row, value);
    }
  }
}

// The bit at `shift`.
void pack_bit_planes(Codes codes, int shift, std::uint8_t* out) {
  for (int quad = 0; quad < kUnitQuads; ++quad) {
    std::uint64_t plane = 0;
    for (int row = 0; row < kStripRows; ++row) {
      const std::uint32_t bits = (four_codes(codes[row] + 4 * quad) >> shift) & 0x01010101u;
      // The product moves bit 8 * j to bit 24 + j; no two of its terms meet.
      plane |= static_cast<std::uint64_t>((bits * 0x01020408u) >> 24) << (4 * row);
    }
    std::memcpy(out + quad * 8, &plane, sizeof plane);
  }
}

// Of formats with super-blocks, whose codes have at most 6 bits.
void pack_codes(const PackedForm& form, Codes codes, std::uint8_t* out) {
  switch (form.code_bits) {
    case 2: return pack_bit_pairs(codes, 0, out);
    case 3: pack_bit_pairs(codes, 0, out); return pack_bit_planes(codes, 2, out + 256);
    case 4: return pack_nibbles(codes, out);
    case 5: pack_nibbles(codes, out); return pack_bit_planes(codes, 4, out + 512);
    default: pack_nibbles(codes, out); return pack_bit_pairs(codes, 4, out + 512);
  }
}

void put_u16(std::uint8_t* out, int index, std::uint16_t value) { std::memcpy(out + 2 * index, &value, sizeof value); }

std::uint32_t read_four(const std::byte* data) {
  std::uint32_t value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// Units of two blocks of 32 with a scale (and a min) each. The packed nibbles are the stored ones, four at a time.
void pack_small_blocks(DType dtype, const PackedForm& form, StripRows rows, std::int64_t num_columns,
                       std::uint8_t* out) {
  const int block_bytes = info(dtype).block_bytes;
  const SmallBlockLayout layout = small_block_layout(dtype);
  const bool bytes = form.code_bits == 8;
  const int num_lines = bytes ? 8 : 4;                   // of a block
  const std::uint32_t flip = bytes ? 0x80808080u : 0u;  // stored bytes are signed
  for (std::int64_t unit = 0; unit < num_units_of(num_columns); ++unit, out += form.unit_bytes()) {
    for (int half = 0; half < 2; ++half) {
      const std::int64_t index = 2 * unit + half;
      if (index * 32 >= num_columns) break;
      std::uint8_t* lines = out + form.scale_bytes() + half * num_lines * kLineBytes;
      std::uint64_t planes[8] = {};
      for (int row = 0; row < kStripRows; ++row) {
        if (rows[row] == nullptr) continue;
        const std::byte* block = rows[row] + index * block_bytes;
        put_u16(out, kStripRows * half + row, small_block_scale(dtype, block));
        if (form.has_min) {
          const auto m = static_cast<std::uint16_t>(read_four(block + layout.m) & 0xFFFFu);
          put_u16(out, kStripRows * (2 + half) + row, m);
        }
        for (int line = 0; line < num_lines; ++line) {
          put_four(lines + line * kLineBytes, row, read_four(block + layout.codes + 4 * line) ^ flip);
        }
        if (layout.fifth_bits < 0) continue;
        const std::uint32_t bits = read_four(block + layout.fifth_bits);
        for (int quad = 0; quad < 8; ++quad) {
          planes[quad] |= static_cast<std::uint64_t>((bits >> (4 * quad)) & 15u) << (4 * row);
        }
      }
      if (layout.fifth_bits >= 0) std::memcpy(out + form.scale_bytes() + 512 + half * 64, planes, sizeof planes);
    }
  }
}

// Super-blocks of 256: a line of fp16 scales, then four units.
void pack_super_blocks(DType dtype, const PackedForm& form, StripRows rows, std::int64_t num_columns,
                       std::uint8_t* out) {
  const int block_bytes = info(dtype).block_bytes;
  const int num_groups = form.unit_groups();
  WeightBlock blocks[kStripRows] = {};
  const std::uint8_t* codes[kStripRows];
  for (std::int64_t index = 0; index * 256 < num_columns; ++index) {
    for (int row = 0; row < kStripRows; ++row) {
      if (rows[row] == nullptr) continue;
      read_block(dtype, rows[row] + index * block_bytes, blocks[row]);
      put_u16(out, row, blocks[row].d);
      if (form.has_min) put_u16(out, kStripRows + row, blocks[row].m);
    }
    out += kLineBytes;
    for (int unit = 0; unit < kSuperUnits; ++unit, out += form.unit_bytes()) {
      for (int row = 0; row < kStripRows; ++row) {
        for (int g = 0; g < num_groups; ++g) {
          out[kStripRows * g + row] = static_cast<std::uint8_t>(blocks[row].scales[unit * num_groups + g]);
          if (!form.has_min) continue;
          out[kStripRows * (num_groups + g) + row] = static_cast<std::uint8_t>(blocks[row].mins[unit * num_groups + g]);
        }
        codes[row] = blocks[row].codes + unit * kUnitColumns;
      }
      pack_codes(form, codes, out + form.scale_bytes());
    }
  }
}

template <class Element>
void interleave(StripRows rows, std::int64_t num_columns, std::byte* out) {
  constexpr std::int64_t kColumns = kLineBytes / static_cast<std::int64_t>(sizeof(Element));
  for (std::int64_t first = 0; first < num_columns; first += kColumns) {
    const std::int64_t count = num_columns - first < kColumns ? num_columns - first : kColumns;
    for (int row = 0; row < kStripRows; ++row) {
      Element values[kColumns] = {};
      if (rows[row] != nullptr) {
        std::memcpy(values, rows[row] + first * static_cast<std::int64_t>(sizeof(Element)),
                    static_cast<std::size_t>(count) * sizeof(Element));
      }
      std::byte* target = out + (first * kStripRows + row) * static_cast<std::int64_t>(sizeof(Element));
      for (std::int64_t i = 0; i < count; ++i, target += kStripRows * sizeof(Element)) {
        std::memcpy(target, &values[i], sizeof(Element));
      }
    }
  }
}

}  // namespace

void pack_block_strip(DType dtype, StripRows rows, std::int64_t num_columns, std::byte* out) {
  const PackedForm form = packed_form(dtype);
  auto* bytes = reinterpret_cast<std::uint8_t*>(out);
  if (form.scales == ScaleKind::kSuper) {
    pack_super_blocks(dtype, form, rows, num_columns, bytes);
  } else {
    pack_small_blocks(dtype, form, rows, num_columns, bytes);
  }
}

void pack_plain_strip(DType dtype, StripRows rows, std::int64_t num_columns, std::byte* out) {
  switch (info(dtype).block_bytes) {
    case 4: return interleave<std::uint32_t>(rows, num_columns, out);
    case 2: return interleave<std::uint16_t>(rows, num_columns, out);
    default: return interleave<std::uint8_t>(rows, num_columns, out);
  }
}

}  // namespace pocket::cpu
