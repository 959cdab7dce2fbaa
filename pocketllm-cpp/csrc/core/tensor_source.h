// Where a model's weights come from: the readers of safetensors and GGUF implement it, and so do tests, from memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace pocket {

// A stored tensor. `shape` has the slowest dimension first, as in PyTorch: [out, in] for a weight matrix, also where
// the file says it the other way round. `data` points into mapped memory or a test's buffer and lives as long as the
// source.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;  // exactly the tensor's bytes
};

enum class FileFormat { kSafetensors, kGguf };

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual FileFormat format() const noexcept = 0;
  // nullptr when there is none of that name.
  virtual const StoredTensor* find(std::string_view name) const noexcept = 0;
  virtual std::span<const StoredTensor> tensors() const noexcept = 0;
  // The bytes of this tensor are not needed any more for now: mapped pages may go. Reading them again is allowed.
  virtual void release(const StoredTensor& tensor) const noexcept { static_cast<void>(tensor); }
};

}  // namespace pocket
