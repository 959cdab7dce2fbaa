// Packing of stored weight rows into strips of 16 rows (packed_form.h for block types).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "kernels/cpu/linear/packed_form.h"

namespace pocket::cpu {

// Stored rows of a strip; nullptr for the rows that pad the last one, which pack as zeros.
using StripRows = std::span<const std::byte* const, kStripRows>;

// Packs a block type's rows; `out` has packed_form(dtype).strip_bytes(num_units_of(num_columns)) bytes, which are zero.
void pack_block_strip(DType dtype, StripRows rows, std::int64_t num_columns, std::byte* out);

// Packs a plain type's rows as [column][16 rows] in the type itself.
void pack_plain_strip(DType dtype, StripRows rows, std::int64_t num_columns, std::byte* out);

}  // namespace pocket::cpu
