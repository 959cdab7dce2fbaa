// Batches of events from the engine's thread to one consumer.
#pragma once

#include <mutex>
#include <vector>

#include "engine/request.h"

namespace pocket {

// A wake costs a system call, so it is sent only when the consumer has disarmed: batches posted while it is still busy
// cost an append. Threads: drain() from one at a time, the others from any.
class EventRing {
 public:
  EventRing();  // throws Error(kEngine) when the process is out of descriptors
  ~EventRing();
  EventRing(const EventRing&) = delete;
  EventRing& operator=(const EventRing&) = delete;

  // Readable while batches wait.
  int fileno() const noexcept { return read_fd_; }
  // True when wake() has to follow, without a lock that the consumer may want: it often runs at once, in the place of
  // the thread that woke it.
  [[nodiscard]] bool post(StepBatch batch);
  void wake() noexcept;
  std::vector<StepBatch> drain();

 private:
  std::mutex mutex_;
  std::vector<StepBatch> batches_;
  bool armed_ = false;
  int read_fd_ = -1;
  int write_fd_ = -1;  // the same for an eventfd
};

}  // namespace pocket
