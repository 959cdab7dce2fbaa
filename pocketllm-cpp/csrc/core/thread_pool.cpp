#include "core/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <chrono>
#include <utility>

namespace pocket {
namespace {

// Kernels of one step follow each other within microseconds; a sleep and a wake cost tens of them.
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr int kPausesPerLook = 64;

void pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `done()` or until the spin time is over. Yields in between: the other thread may want this very core.
template <class Done>
bool spin_until(Done done) noexcept {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  for (;;) {
    for (int count = 0; count < kPausesPerLook; ++count) {
      if (done()) return true;
      pause();
    }
    if (std::chrono::steady_clock::now() >= end) return done();
    std::this_thread::yield();
  }
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  for (int thread = 1; thread < num_threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(std::int64_t num_tasks, Call call, void* object) {
  if (num_tasks <= 0) return;
  if (workers_.empty() || num_tasks == 1) {
    for (std::int64_t index = 0; index < num_tasks; ++index) call(object, index, 0);
    return;
  }
  num_tasks_ = num_tasks;
  call_ = call;
  object_ = object;
  next_.store(0, std::memory_order_relaxed);
  num_busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  take_tasks(0);
  while (!spin_until([this] { return num_busy_.load(std::memory_order_acquire) == 0; })) {
    const int busy = num_busy_.load(std::memory_order_acquire);
    if (busy != 0) num_busy_.wait(busy, std::memory_order_acquire);
  }
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void ThreadPool::work(int thread) {
  std::uint32_t seen = 0;
  for (;;) {
    if (!spin_until([&] { return round_.load(std::memory_order_acquire) != seen; })) {
      round_.wait(seen, std::memory_order_acquire);
    }
    const std::uint32_t round = round_.load(std::memory_order_acquire);
    if (round == seen) continue;
    seen = round;
    if (stopping_.load(std::memory_order_relaxed)) return;
    take_tasks(thread);
    if (num_busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_busy_.notify_one();
  }
}

void ThreadPool::take_tasks(int thread) noexcept {
  for (;;) {
    const std::int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= num_tasks_) return;
    try {
      call_(object_, index, thread);
    } catch (...) {
      if (!failed_.exchange(true, std::memory_order_acq_rel)) failure_ = std::current_exception();
    }
  }
}

}  // namespace pocket
