#include "core/buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace pocket {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// From here on memory is mapped on its own: it goes back to the system when freed, and is zero.
constexpr std::size_t kMapFrom = std::size_t{1} << 20;

std::size_t round_up(std::size_t value, std::size_t step) { return (value + step - 1) / step * step; }

}  // namespace

std::byte* allocate_host_memory(std::size_t num_bytes) {
  if (num_bytes < kMapFrom) {
    const std::size_t rounded = round_up(num_bytes, Buffer::kAlignment);
    void* data = std::aligned_alloc(Buffer::kAlignment, rounded);
    if (data == nullptr) throw std::bad_alloc();
    std::memset(data, 0, rounded);
    return static_cast<std::byte*>(data);
  }
  if (num_bytes > SIZE_MAX - kHugePage) throw std::bad_alloc();
  const std::size_t mapped = round_up(num_bytes, 4096);
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (mapped >= kHugePage) madvise(data, mapped, MADV_HUGEPAGE);  // advice only: a refusal changes nothing
#endif
  return static_cast<std::byte*>(data);
}

void free_host_memory(std::byte* data, std::size_t num_bytes) noexcept {
  if (num_bytes < kMapFrom) {
    std::free(data);
  } else {
    munmap(data, round_up(num_bytes, 4096));
  }
}

}  // namespace pocket
