// A file whose bytes are read where the kernel keeps them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

namespace pocket {

// A regular file, mapped whole and read-only. Safe from any thread.
//
// Its size is fixed when it is opened. The kernel answers a read past the end of a file that was truncated meanwhile
// with SIGBUS, which nothing here catches: a checkpoint in use must be replaced by renaming another over it, not
// rewritten.
class MappedFile {
 public:
  // Throws Error(kCheckpoint) naming the path: missing, not readable, empty, or a folder, pipe or device.
  explicit MappedFile(std::string path);
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const noexcept { return path_; }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }

  // Says that the file will be read from front to back, so that the kernel reads well ahead.
  void expect_sequential_reads() const noexcept;
  // Unmaps the pages that lie wholly inside these bytes of a mapped file; reading them again brings them back.
  static void release(std::span<const std::byte> bytes) noexcept;

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace pocket
