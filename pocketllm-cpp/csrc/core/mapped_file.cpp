#include "core/mapped_file.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

namespace pocket {
namespace {

class OpenFile {
 public:
  explicit OpenFile(const char* path) : descriptor_(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int descriptor() const noexcept { return descriptor_; }

 private:
  int descriptor_;
};

std::uintptr_t page_bytes() noexcept {
  static const auto size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

// The pages that lie wholly inside `bytes`.
std::span<std::byte> inner_pages(std::span<const std::byte> bytes) noexcept {
  const std::uintptr_t mask = page_bytes() - 1;
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t begin = (address + mask) & ~mask;
  const std::uintptr_t end = (address + bytes.size()) & ~mask;
  if (begin >= end) return {};
  return {reinterpret_cast<std::byte*>(begin), end - begin};
}

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const auto fail = [&](const std::string& problem) { throw Error(ErrorKind::kCheckpoint, path_ + ": " + problem); };
  if (path_.find('\0') != std::string::npos) {
    throw Error(ErrorKind::kCheckpoint, "a path with a null character cannot be opened. Check the path.");
  }
  // Without blocking, since opening a pipe would wait for its writer.
  const OpenFile file(path_.c_str());
  struct stat status = {};
  if (file.descriptor() < 0 || ::fstat(file.descriptor(), &status) != 0) {
    fail(std::string("cannot be opened (") + std::strerror(errno) + "). Check the path and its permissions.");
  }
  if (!S_ISREG(status.st_mode)) fail("is not a regular file. Give the path of a checkpoint file.");
  if (status.st_size == 0) fail("is empty. Fetch the file again.");
  const auto size = static_cast<std::size_t>(status.st_size);
  void* const address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (address == MAP_FAILED) {
    fail(std::string("cannot be mapped (") + std::strerror(errno) + "). Copy it to a local file system.");
  }
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

// Advice may be refused (a kernel without it, an odd file system) without harm.
void MappedFile::expect_sequential_reads() const noexcept {
  ::madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_SEQUENTIAL);
}

void MappedFile::release(std::span<const std::byte> bytes) noexcept {
  const std::span<std::byte> inside = inner_pages(bytes);
  if (!inside.empty()) ::madvise(inside.data(), inside.size(), MADV_DONTNEED);
}

}  // namespace pocket
