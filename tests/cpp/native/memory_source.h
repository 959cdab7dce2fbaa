// Checkpoints made in memory: tensors of a model whose values come from a small generator, by name.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor_source.h"

class MemorySource : public pocket::TensorSource {
 public:
  explicit MemorySource(pocket::FileFormat format = pocket::FileFormat::kSafetensors) : format_(format) {}
  // Tensors point into the storage, which moves with its elements where they are.
  MemorySource(MemorySource&&) = default;
  MemorySource& operator=(MemorySource&&) = default;

  pocket::FileFormat format() const noexcept override { return format_; }
  const pocket::StoredTensor* find(std::string_view name) const noexcept override {
    for (const pocket::StoredTensor& tensor : tensors_) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  std::span<const pocket::StoredTensor> tensors() const noexcept override { return tensors_; }

  void add(const std::string& name, std::vector<std::int64_t> shape, const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    add_bytes(name, pocket::DType::kF32, std::move(shape), std::move(bytes));
  }

  void add_bytes(const std::string& name, pocket::DType dtype, std::vector<std::int64_t> shape,
                 std::vector<std::byte> bytes) {
    storage_.push_back(std::move(bytes));
    tensors_.push_back({name, dtype, std::move(shape), storage_.back()});
  }

  // Values from -scale to scale (about 1 for vectors), the same for the same name.
  void add_random(const std::string& name, std::vector<std::int64_t> shape, float scale = 0.2f) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    std::uint64_t state = std::hash<std::string>{}(name) | 1;
    std::vector<float> values;
    for (std::int64_t index = 0; index < count; ++index) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const float unit = static_cast<float>(state >> 40) / static_cast<float>(1 << 23) - 1.0f;
      values.push_back(scale * unit + (shape.size() == 1 ? 1.0f : 0.0f));
    }
    add(name, std::move(shape), values);
  }

  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const pocket::StoredTensor& tensor) { return tensor.name == name; });
  }

 private:
  pocket::FileFormat format_;
  std::deque<std::vector<std::byte>> storage_;
  std::vector<pocket::StoredTensor> tensors_;
};
