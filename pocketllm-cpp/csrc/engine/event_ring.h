// Batches of events from the engine's thread to one consumer.
#pragma once

#include <mutex>
#include <vector>

#include "engine/request.h"

namespace pocket {

// A wake costs a system call, so it is sent only when the consumer has disarmed: batches posted while it is still busy
// cost an append. Threads: post() from any, drain() from one at a time.
class EventRing {
 public:
  EventRing();  // throws Error(kEngine) when the process is out of descriptors
  ~EventRing();
  EventRing(const EventRing&) = delete;
  EventRing& operator=(const EventRing&) = delete;

  // Readable while batches wait.
  int fileno() const noexcept { return read_fd_; }
  void post(StepBatch batch);
  std::vector<StepBatch> drain();

 private:
  std::mutex mutex_;
  std::vector<StepBatch> batches_;
  bool armed_ = false;
  int read_fd_ = -1;
  int write_fd_ = -1;  // the same for an eventfd
};

}  // namespace pocket
