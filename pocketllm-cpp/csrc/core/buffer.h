// Host memory for staging and scratch, aligned for vector loads.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace pocket {

// `num_bytes` > 0 bytes of zeroed host memory, aligned to a cache line (to a huge page when large). Throws
// std::bad_alloc. It is given back with the size it was asked for.
std::byte* allocate_host_memory(std::size_t num_bytes);
void free_host_memory(std::byte* data, std::size_t num_bytes) noexcept;

// Owned host memory. Zero when it is made.
class Buffer {
 public:
  static constexpr std::size_t kAlignment = 64;

  Buffer() = default;
  explicit Buffer(std::size_t num_bytes)
      : data_(num_bytes == 0 ? nullptr : allocate_host_memory(num_bytes), Free{num_bytes}), size_(num_bytes) {}
  Buffer(Buffer&& other) noexcept : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  std::byte* data() noexcept { return data_.get(); }
  const std::byte* data() const noexcept { return data_.get(); }
  std::size_t size() const noexcept { return size_; }

  template <class T>
  T* as() noexcept {
    return reinterpret_cast<T*>(data_.get());
  }
  template <class T>
  const T* as() const noexcept {
    return reinterpret_cast<const T*>(data_.get());
  }

  // Room for `count` elements of T; keeps the memory when it is large enough, and loses the content when it is not.
  template <class T>
  T* reserve(std::size_t count) {
    if (count * sizeof(T) > size_) *this = Buffer(count * sizeof(T));
    return as<T>();
  }

 private:
  struct Free {
    std::size_t num_bytes;
    Free() noexcept : num_bytes(0) {}
    explicit Free(std::size_t count) noexcept : num_bytes(count) {}
    void operator()(std::byte* data) const noexcept { free_host_memory(data, num_bytes); }
  };

  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

}  // namespace pocket
