// What every operation is given: a device, what it can do, and the order in which it does it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/buffer.h"
#include "core/device.h"
#include "core/thread_pool.h"

namespace pocket {

struct Operations;  // kernels/operations.h

// One per engine and device; a call at a time. kernels/devices.h makes it.
struct Context {
  Device& device;
  const Operations& operations;
  ThreadPool& threads;  // of the host
  std::unique_ptr<DeviceStream> stream = nullptr;
};

// What one device's operations alone can read, such as packed weights.
class DeviceObject {
 public:
  explicit DeviceObject(const Device& device) noexcept : device_(device) {}
  virtual ~DeviceObject() = default;
  DeviceObject(const DeviceObject&) = delete;
  DeviceObject& operator=(const DeviceObject&) = delete;

  const Device& device() const noexcept { return device_; }

 private:
  const Device& device_;
};

// Throws Error(kEngine), naming both devices, when `owner` is not the context's.
void check_device(const Context& context, const Device& owner, const char* what);

// The object as its own device made it. A device makes one class of each kind, so whose it is says what it is.
template <class Own, class Object>
Own& own(const Context& context, Object& object, const char* what) {
  check_device(context, object.device(), what);
  return static_cast<Own&>(object);
}

template <class T>
void copy_from_host(Context& context, std::span<const T> from, T* to) {
  if (from.empty()) return;
  context.device.copy_from_host(context.stream.get(), reinterpret_cast<const std::byte*>(from.data()),
                                reinterpret_cast<std::byte*>(to), from.size_bytes());
}

template <class T>
void copy_to_host(Context& context, const T* from, std::span<T> to) {
  if (to.empty()) return;
  context.device.copy_to_host(context.stream.get(), reinterpret_cast<const std::byte*>(from),
                              reinterpret_cast<std::byte*>(to.data()), to.size_bytes());
}

// `from` as the host can read it: where it lies when the host sees the device's memory, else a copy in `staging`.
// Valid until the staging is used again or the device's memory changes.
template <class T>
std::span<const T> read_back(Context& context, const T* from, std::size_t count, Buffer& staging) {
  if (context.device.host_visible()) return {from, count};
  T* copy = staging.reserve<T>(count);
  copy_to_host(context, from, std::span<T>(copy, count));
  return {copy, count};
}

// A copy of host values in the device's memory.
template <class T>
DeviceBuffer copied(Context& context, std::span<const T> values) {
  return DeviceBuffer::copied(context.device, context.stream.get(), std::as_bytes(values));
}

}  // namespace pocket
