// How the elements of a stored tensor are laid out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace pocket {

// Block types are GGUF's; their bytes are described where they are read (kernels/cpu/linear/block_formats.h).
enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E8M0,
  kI8,
  kU8,
  kI32,
  kI64,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
};

struct DTypeInfo {
  std::string_view name;  // GGUF's and safetensors' spelling, as in "Q4_K" and "F8_E4M3"
  int block_elements;     // 1 for plain types
  int block_bytes;
};

const DTypeInfo& info(DType dtype) noexcept;

// By name; nullopt for a type that is not read.
std::optional<DType> dtype_named(std::string_view name) noexcept;

// By GGUF's type number; nullopt for a type that is not read.
std::optional<DType> dtype_from_gguf(std::uint32_t number) noexcept;

inline bool is_block_type(DType dtype) noexcept { return info(dtype).block_elements > 1; }

// Bytes of a row of `num_elements`, which must be a multiple of the type's block.
inline std::size_t row_bytes(DType dtype, std::int64_t num_elements) noexcept {
  const DTypeInfo& type = info(dtype);
  return static_cast<std::size_t>(num_elements / type.block_elements) * static_cast<std::size_t>(type.block_bytes);
}

}  // namespace pocket
