// What every kernel is given.
#pragma once

#include "core/thread_pool.h"

namespace pocket {

// One per engine; a kernel call at a time.
struct Context {
  ThreadPool& threads;
};

}  // namespace pocket
