// Devices, and the memory that belongs to them.
//
// An address in a device's memory is a plain pointer to what lies there. Host code keeps it, adds to it and hands it to
// operations and copies, and never reads or writes through it: only some devices' memory is the host's as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace pocket {

// The order of a device's work. Devices whose operations have ended when they return need none.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
};

// Threads: any, as long as no two touch the same bytes.
class Device {
 public:
  virtual ~Device() = default;

  // As people write it: "cpu".
  virtual std::string_view name() const noexcept = 0;
  // The host may read and write the device's memory, and the device the host's.
  virtual bool host_visible() const noexcept = 0;
  // All the memory there is.
  virtual std::int64_t memory_bytes() const noexcept = 0;

  // `num_bytes` > 0 zeroed bytes, aligned to a cache line. Throws std::bad_alloc.
  virtual std::byte* allocate(std::size_t num_bytes) = 0;
  // Gives them back; with the same size, when no work on them is left.
  virtual void release(std::byte* data, std::size_t num_bytes) noexcept = 0;

  // Copies are in the order of the stream (nullptr: the device has none). Host memory may be reused, or has what was
  // asked for, when a call returns. Ranges do not overlap. They throw Error(kEngine) when the device fails.
  virtual void copy_from_host(DeviceStream* stream, const std::byte* from, std::byte* to, std::size_t num_bytes) = 0;
  virtual void copy_to_host(DeviceStream* stream, const std::byte* from, std::byte* to, std::size_t num_bytes) = 0;
  virtual void copy(DeviceStream* stream, const std::byte* from, std::byte* to, std::size_t num_bytes) = 0;
  virtual void zero(DeviceStream* stream, std::byte* data, std::size_t num_bytes) = 0;
};

// Owned memory of one device, zero when it is made; or none. The device must outlive it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device& device, std::size_t num_bytes)
      : device_(&device), data_(num_bytes == 0 ? nullptr : device.allocate(num_bytes)), size_(num_bytes), owns_(true) {}
  ~DeviceBuffer() { reset(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    if (this != &other) {
      reset();
      swap(other);
    }
    return *this;
  }

  // A copy of host memory.
  static DeviceBuffer copied(Device& device, DeviceStream* stream, std::span<const std::byte> bytes);
  // Host memory as the device reads it: as it lies where the device sees it, which then must outlive this, or a copy.
  static DeviceBuffer mapped(Device& device, DeviceStream* stream, std::span<const std::byte> bytes);

  // nullptr for a buffer that is not made.
  Device* device() const noexcept { return device_; }
  std::size_t size() const noexcept { return size_; }
  std::byte* data() noexcept { return data_; }
  const std::byte* data() const noexcept { return data_; }

  template <class T>
  T* as() noexcept {
    return reinterpret_cast<T*>(data_);
  }
  template <class T>
  const T* as() const noexcept {
    return reinterpret_cast<const T*>(data_);
  }

  // Room for `count` elements of T on `device`; keeps the memory when it is large enough, and loses the content when it
  // is not.
  template <class T>
  T* reserve(Device& device, std::size_t count) {
    if (device_ != &device || count * sizeof(T) > size_) {
      reset();
      *this = DeviceBuffer(device, count * sizeof(T));
    }
    return as<T>();
  }

 private:
  void reset() noexcept {
    if (owns_ && data_ != nullptr) device_->release(data_, size_);
    device_ = nullptr;
    data_ = nullptr;
    size_ = 0;
    owns_ = false;
  }
  void swap(DeviceBuffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(owns_, other.owns_);
  }

  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  bool owns_ = false;
};

}  // namespace pocket
