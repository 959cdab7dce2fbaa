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
  num_unended_.store(num_tasks, std::memory_order_relaxed);
  num_untaken_.store(num_tasks, std::memory_order_release);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  take_tasks(0);
  while (!spin_until([this] { return num_unended_.load(std::memory_order_acquire) == 0; })) {
    const std::int64_t num_unended = num_unended_.load(std::memory_order_acquire);
    if (num_unended != 0) num_unended_.wait(num_unended, std::memory_order_acquire);
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
  }
}

void ThreadPool::take_tasks(int thread) noexcept {
  std::int64_t num_ended = 0;
  std::int64_t num_untaken = num_untaken_.load(std::memory_order_acquire);
  while (num_untaken != 0) {
    if (!num_untaken_.compare_exchange_weak(num_untaken, num_untaken - 1, std::memory_order_acq_rel,
                                            std::memory_order_acquire)) {
      continue;
    }
    try {
      call_(object_, num_tasks_ - num_untaken, thread);
    } catch (...) {
      if (!failed_.exchange(true, std::memory_order_acq_rel)) failure_ = std::current_exception();
    }
    ++num_ended;
    num_untaken = num_untaken_.load(std::memory_order_acquire);
  }
  if (num_ended != 0 && num_unended_.fetch_sub(num_ended, std::memory_order_acq_rel) == num_ended) {
    num_unended_.notify_one();
  }
}

}  // namespace pocket
