#include "core/tensor_extents.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/utf8.h"

namespace pocket {

std::string shown_shape(std::span<const std::int64_t> shape) {
  std::string out = "[";
  for (const std::int64_t size : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(size);
  return out + "]";
}

std::int64_t count_elements(std::span<const std::int64_t> shape) noexcept {
  std::uint64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || static_cast<std::uint64_t>(size) > kMaxElements) return -1;
    if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(size), &count) || count > kMaxElements) return -1;
  }
  return static_cast<std::int64_t>(count);
}

std::size_t data_alignment(DType dtype) noexcept {
  switch (dtype) {
    case DType::kI64: return 8;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kI8:
    case DType::kU8:
    case DType::kMXFP4: return 1;
    default: return 2;  // halves, and blocks with halves in them
  }
}

void check_extents(std::string_view file, std::span<const StoredTensor> tensors) {
  const auto fail = [&](const std::string& problem) {
    throw Error(ErrorKind::kCheckpoint, std::string(file) + ": " + problem);
  };
  std::vector<const StoredTensor*> ordered;
  ordered.reserve(tensors.size());
  for (const StoredTensor& tensor : tensors) {
    if (tensor.data.empty()) continue;
    if (reinterpret_cast<std::uintptr_t>(tensor.data.data()) % data_alignment(tensor.dtype) != 0) {
      fail("tensor '" + shown_text(tensor.name) + "' of " + std::string(info(tensor.dtype).name) +
           " starts at a byte that is not a multiple of " + std::to_string(data_alignment(tensor.dtype)) +
           ". Write the file again with a current version of the tool that made it.");
    }
    ordered.push_back(&tensor);
  }
  std::sort(ordered.begin(), ordered.end(), [](const StoredTensor* left, const StoredTensor* right) {
    return left->data.data() < right->data.data();
  });
  for (std::size_t index = 1; index < ordered.size(); ++index) {
    const StoredTensor& left = *ordered[index - 1];
    const StoredTensor& right = *ordered[index];
    if (left.data.data() + left.data.size() > right.data.data()) {
      fail("tensors '" + shown_text(left.name) + "' and '" + shown_text(right.name) +
           "' overlap. The file is damaged; fetch it again.");
    }
  }
}

// A sorted index and not a hash table, whose buckets a hostile file could fill at will.
std::vector<std::uint32_t> index_by_name(std::string_view file, std::span<const StoredTensor> tensors) {
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t left, std::uint32_t right) { return tensors[left].name < tensors[right].name; });
  for (std::size_t index = 1; index < order.size(); ++index) {
    const std::string& name = tensors[order[index]].name;
    if (name == tensors[order[index - 1]].name) {
      throw Error(ErrorKind::kCheckpoint, std::string(file) + ": the tensor name '" + shown_text(name) +
                                              "' appears twice. The file is damaged; fetch it again.");
    }
  }
  return order;
}

const StoredTensor* find_by_name(std::span<const StoredTensor> tensors, std::span<const std::uint32_t> by_name,
                                 std::string_view name) noexcept {
  const auto found = std::lower_bound(
      by_name.begin(), by_name.end(), name,
      [&](std::uint32_t index, std::string_view wanted) { return tensors[index].name < wanted; });
  if (found == by_name.end() || tensors[*found].name != name) return nullptr;
  return &tensors[*found];
}

}  // namespace pocket
