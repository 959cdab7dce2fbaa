// What both file formats ask of the tensors in one file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor_source.h"

namespace pocket {

// A DeepSeek-V4 release, with one tensor per expert and one per scale, has about 100 000.
inline constexpr std::size_t kMaxTensors = std::size_t{1} << 18;
inline constexpr std::size_t kMaxTensorNameBytes = 1024;
inline constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 60;

// As in "[3, 4]".
std::string shown_shape(std::span<const std::int64_t> shape);

// The number of elements, or -1 when a size or a product of sizes is past kMaxElements.
std::int64_t count_elements(std::span<const std::int64_t> shape) noexcept;

// The bytes that the address of a tensor's data must be a multiple of.
std::size_t data_alignment(DType dtype) noexcept;

// Throws Error(kCheckpoint) when two tensors of `file` share bytes, or one's data is not aligned for its type.
void check_extents(std::string_view file, std::span<const StoredTensor> tensors);

// Names, sorted, to find tensors by. Throws Error(kCheckpoint) naming `file` when two tensors have one name.
std::vector<std::uint32_t> index_by_name(std::string_view file, std::span<const StoredTensor> tensors);
const StoredTensor* find_by_name(std::span<const StoredTensor> tensors, std::span<const std::uint32_t> by_name,
                                 std::string_view name) noexcept;

}  // namespace pocket
