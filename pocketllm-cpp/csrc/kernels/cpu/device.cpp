#include <unistd.h>

#include <cstring>

#include "core/buffer.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/simd/dispatch.h"

namespace pocket::cpu {
namespace {

class CpuDevice final : public Device {
 public:
  std::string_view name() const noexcept override { return "cpu"; }
  bool host_visible() const noexcept override { return true; }
  std::int64_t memory_bytes() const noexcept override {
    return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::int64_t>(sysconf(_SC_PAGE_SIZE));
  }

  std::byte* allocate(std::size_t num_bytes) override { return allocate_host_memory(num_bytes); }
  void release(std::byte* data, std::size_t num_bytes) noexcept override { free_host_memory(data, num_bytes); }

  void copy_from_host(DeviceStream*, const std::byte* from, std::byte* to, std::size_t num_bytes) override {
    std::memcpy(to, from, num_bytes);
  }
  void copy_to_host(DeviceStream*, const std::byte* from, std::byte* to, std::size_t num_bytes) override {
    std::memcpy(to, from, num_bytes);
  }
  void copy(DeviceStream*, const std::byte* from, std::byte* to, std::size_t num_bytes) override {
    std::memcpy(to, from, num_bytes);
  }
  void zero(DeviceStream*, std::byte* data, std::size_t num_bytes) override { std::memset(data, 0, num_bytes); }
};

Operations make_operations() noexcept {
  Operations table{};
  table.keep_sequences = [](Context&, std::span<const SequenceRows>, std::unique_ptr<DeviceObject>) {
    return std::unique_ptr<DeviceObject>{};
  };
  add_attention(table);
  add_delta_net(table);
  add_elementwise(table);
  add_linear(table);
  add_routing(table);
  add_sampling(table);
  return table;
}

}  // namespace

Device& device() noexcept {
  static CpuDevice only;
  return only;
}

Context open(ThreadPool& threads) {
  instruction_set_in_use();  // throws when POCKET_INSTRUCTION_SET names a set that is not there
  static const Operations table = make_operations();
  return {device(), table, threads};
}

}  // namespace pocket::cpu
