#include "engine/event_ring.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "core/error.h"

#if defined(__linux__)
#include <sys/eventfd.h>
#endif

namespace pocket {
namespace {

[[noreturn]] void fail(const char* what) {
  throw Error(ErrorKind::kEngine, std::string{"no descriptor for events: "} + what + ": " + std::strerror(errno) +
                                      ". Raise the limit of open files.");
}

}  // namespace

#if defined(__linux__)

EventRing::EventRing() {
  read_fd_ = write_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (read_fd_ < 0) fail("eventfd");
}

#else

EventRing::EventRing() {
  int ends[2];
  if (pipe(ends) != 0) fail("pipe");
  for (const int end : ends) {
    fcntl(end, F_SETFL, O_NONBLOCK);
    fcntl(end, F_SETFD, FD_CLOEXEC);
  }
  read_fd_ = ends[0];
  write_fd_ = ends[1];
}

#endif

EventRing::~EventRing() {
  close(read_fd_);
  if (write_fd_ != read_fd_) close(write_fd_);
}

bool EventRing::post(StepBatch batch) {
  const std::lock_guard lock(mutex_);
  batches_.push_back(std::move(batch));
  return !std::exchange(armed_, true);
}

void EventRing::wake() noexcept {
  // An eventfd counts native words, a pipe takes any bytes. A full one is readable, which is all that matters.
  const std::uint64_t one = 1;
  while (write(write_fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

std::vector<StepBatch> EventRing::drain() {
  // Read whether armed or not: a wake may come after the drain that has taken its batch.
  std::uint64_t count = 0;
  while (read(read_fd_, &count, sizeof count) < 0 && errno == EINTR) {
  }
  const std::lock_guard lock(mutex_);
  armed_ = false;
  return std::exchange(batches_, {});
}

}  // namespace pocket
