#include "kernels/reference/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>

#include "core/buffer.h"
#include "core/error.h"

namespace pocket::reference {
namespace {

std::size_t whole_pages(std::size_t num_bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
  return (num_bytes + page - 1) / page * page;
}

class ReferenceDevice final : public Device {
 public:
  std::string_view name() const noexcept override { return "reference"; }
  bool host_visible() const noexcept override { return false; }
  std::int64_t memory_bytes() const noexcept override {
    return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::int64_t>(sysconf(_SC_PAGE_SIZE));
  }

  std::byte* allocate(std::size_t num_bytes) override {
    Buffer content(num_bytes);
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* reserved = mmap(nullptr, whole_pages(num_bytes), PROT_NONE, kFlags, -1, 0);
    if (reserved == MAP_FAILED) throw std::bad_alloc();
    auto* address = static_cast<std::byte*>(reserved);
    const std::unique_lock lock(mutex_);
    contents_.emplace(address, std::move(content));
    return address;
  }

  void release(std::byte* data, std::size_t num_bytes) noexcept override {
    const std::unique_lock lock(mutex_);
    contents_.erase(data);
    munmap(data, whole_pages(num_bytes));
  }

  void copy_from_host(DeviceStream*, const std::byte* from, std::byte* to, std::size_t num_bytes) override {
    std::memcpy(find(to, num_bytes), from, num_bytes);
  }
  void copy_to_host(DeviceStream*, const std::byte* from, std::byte* to, std::size_t num_bytes) override {
    std::memcpy(to, find(from, num_bytes), num_bytes);
  }
  void copy(DeviceStream*, const std::byte* from, std::byte* to, std::size_t num_bytes) override {
    std::memcpy(find(to, num_bytes), find(from, num_bytes), num_bytes);
  }
  void zero(DeviceStream*, std::byte* data, std::size_t num_bytes) override {
    std::memset(find(data, num_bytes), 0, num_bytes);
  }

  std::byte* find(const std::byte* data, std::size_t num_bytes) {
    const std::shared_lock lock(mutex_);
    auto after = contents_.upper_bound(data);
    if (after != contents_.begin()) {
      auto& [address, content] = *--after;
      const auto offset = static_cast<std::size_t>(data - address);
      if (offset <= content.size() && num_bytes <= content.size() - offset) return content.data() + offset;
    }
    throw Error(ErrorKind::kEngine, "An operation of the device \"reference\" was given " + std::to_string(num_bytes) +
                                        " bytes that are not within one of the device's allocations.");
  }

 private:
  std::shared_mutex mutex_;
  std::map<const std::byte*, Buffer> contents_;  // by address
};

ReferenceDevice& only() noexcept {
  static ReferenceDevice device;
  return device;
}

}  // namespace

Device& device() noexcept { return only(); }

std::byte* reach_bytes(const void* data, std::size_t num_bytes) {
  return only().find(static_cast<const std::byte*>(data), num_bytes);
}

}  // namespace pocket::reference
