// A device under test: tensors in its memory, with guard zones around each.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "kernels/devices.h"
#include "kernels/operations.h"

namespace bench {

// Values in device memory between two zones of known bytes.
class GuardedBytes {
 public:
  GuardedBytes(pocket::Context& context, std::span<const std::byte> values)
      : context_(context), size_(values.size()), buffer_(context.device, values.size() + 2 * kGuardBytes) {
    const std::vector<std::byte> guard(kGuardBytes, kGuard);
    pocket::copy_from_host(context_, std::span(guard), buffer_.data());
    pocket::copy_from_host(context_, values, data());
    pocket::copy_from_host(context_, std::span(guard), data() + size_);
  }

  std::byte* data() noexcept { return buffer_.data() + kGuardBytes; }

  // The values now. Fails when something was written outside them.
  std::vector<std::byte> read() {
    for (const std::byte* guard : {buffer_.data(), data() + size_}) {
      std::vector<std::byte> zone(kGuardBytes);
      pocket::copy_to_host(context_, guard, std::span(zone));
      for (const std::byte one : zone) CHECK(one == kGuard);
    }
    std::vector<std::byte> values(size_);
    pocket::copy_to_host(context_, static_cast<const std::byte*>(data()), std::span(values));
    return values;
  }

 private:
  static constexpr std::size_t kGuardBytes = 256;
  static constexpr std::byte kGuard{0xA5};

  pocket::Context& context_;
  std::size_t size_;
  pocket::DeviceBuffer buffer_;
};

template <class T>
class Tensor {
 public:
  Tensor(pocket::Context& context, const std::vector<T>& values)
      : bytes_(std::make_unique<GuardedBytes>(context, std::as_bytes(std::span(values)))) {}

  T* data() noexcept { return reinterpret_cast<T*>(bytes_->data()); }
  operator T*() noexcept { return data(); }
  // Fails when something was written outside the tensor.
  std::vector<T> values() const {
    const std::vector<std::byte> bytes = bytes_->read();
    std::vector<T> all(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(all.data(), bytes.data(), bytes.size());
    return all;
  }

 private:
  std::unique_ptr<GuardedBytes> bytes_;
};

// A tensor that operations read. `unchanged` says whether they left it as it was.
template <class T>
class Input : public Tensor<T> {
 public:
  Input(pocket::Context& context, std::vector<T> values) : Tensor<T>(context, values), original_(std::move(values)) {}

  bool unchanged() const {
    const std::vector<T> now = this->values();
    return now.size() == original_.size() &&
           (now.empty() || std::memcmp(now.data(), original_.data(), now.size() * sizeof(T)) == 0);
  }

 private:
  std::vector<T> original_;
};

// A context on a device, with its threads.
class DeviceBench {
 public:
  explicit DeviceBench(std::string_view name, int num_threads = 1)
      : threads_(num_threads), context_(pocket::open_device(name, threads_)) {}

  pocket::Context& context() noexcept { return context_; }

  template <class T>
  Input<T> input(std::vector<T> values) {
    return Input<T>(context_, std::move(values));
  }
  template <class T>
  Tensor<T> output(const std::vector<T>& values) {
    return Tensor<T>(context_, values);
  }

 private:
  pocket::ThreadPool threads_;
  pocket::Context context_;
};

// Runs the body for each device of this build, and says which one failed.
template <class Body>
void on_each_device(Body&& body) {
  for (const std::string& name : pocket::device_names()) {
    try {
      body(name);
    } catch (const std::exception& error) {
      throw std::runtime_error("on the device \"" + name + "\": " + error.what());
    }
  }
}

}  // namespace bench
