// Owned memory for weights, caches and scratch, aligned for vector loads.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace pocket {

// `num_bytes` bytes aligned to a cache line (to a huge page when large); zeroed when fresh from the kernel, as large
// buffers always are. Throws std::bad_alloc.
class Buffer {
 public:
  static constexpr std::size_t kAlignment = 64;

  Buffer() = default;
  explicit Buffer(std::size_t num_bytes);
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
  struct Unmap {
    std::size_t mapped_bytes;  // 0: from the allocator
    Unmap() noexcept : mapped_bytes(0) {}
    explicit Unmap(std::size_t num_bytes) noexcept : mapped_bytes(num_bytes) {}
    void operator()(std::byte* data) const noexcept;
  };

  std::unique_ptr<std::byte, Unmap> data_;
  std::size_t size_ = 0;
};

}  // namespace pocket
