// A runtime as Python holds it: it knows who may touch it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "engine/runtime.h"

namespace pocket {

// Sessions and engines all keep their sequences in the same cache, so only the one made last may run. Each takes a
// lease; a lease ends when the next one is taken.
class BoundRuntime {
 public:
  explicit BoundRuntime(std::unique_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {}

  Runtime& runtime() noexcept { return *runtime_; }

  // Throws Error(kConfiguration) while an engine holds the runtime.
  std::int64_t lease(bool for_engine);
  // Holds the runtime for one call of the lease's owner. Throws Error(kConfiguration) when the lease has ended.
  std::unique_lock<std::mutex> enter(std::int64_t lease);
  // The engine is closed; sessions may be made again.
  void end_engine() noexcept;

 private:
  std::unique_ptr<Runtime> runtime_;
  std::mutex mutex_;
  std::int64_t lease_ = 0;
  bool engine_open_ = false;
};

}  // namespace pocket
