// Every task once, on a thread that the pool has, however many rounds follow each other.
#include "core/thread_pool.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"

namespace {

using pocket::ThreadPool;

TEST(every_task_runs_once_in_every_round) {
  for (const int num_threads : {1, 2, 3, 7}) {
    ThreadPool threads(num_threads);
    CHECK_EQUAL(threads.num_threads(), num_threads);
    for (std::int64_t round = 0; round < 2000; ++round) {
      const std::int64_t num_tasks = round % 11;
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(num_tasks));
      std::atomic<bool> is_thread_known{true};
      threads.run(num_tasks, [&](std::int64_t index, int thread) {
        runs[static_cast<std::size_t>(index)].fetch_add(1);
        if (thread < 0 || thread >= num_threads) is_thread_known = false;
      });
      for (const auto& count : runs) CHECK_EQUAL(count.load(), 1);
      CHECK(is_thread_known);
    }
  }
}

TEST(what_tasks_wrote_is_seen_after_the_round_without_a_lock) {
  ThreadPool threads(3);
  std::vector<std::int64_t> values(64, 0);
  for (std::int64_t round = 1; round <= 500; ++round) {
    threads.run(64, [&](std::int64_t index, int) { values[static_cast<std::size_t>(index)] += index; });
    for (std::int64_t index = 0; index < 64; ++index) {
      CHECK_EQUAL(values[static_cast<std::size_t>(index)], round * index);
    }
  }
}

TEST(the_first_exception_comes_after_all_tasks_and_the_next_round_knows_nothing_of_it) {
  ThreadPool threads(2);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> num_run{0};
    const auto task = [&](std::int64_t index, int) {
      num_run.fetch_add(1);
      if (index % 3 == 0) throw std::runtime_error("no");
    };
    CHECK_THROWS(std::runtime_error, threads.run(8, task));
    CHECK_EQUAL(num_run.load(), 8);
    threads.run(8, [&](std::int64_t, int) { num_run.fetch_add(1); });
    CHECK_EQUAL(num_run.load(), 16);
  }
}

TEST(threads_that_sleep_between_rounds_wake) {
  ThreadPool threads(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    std::atomic<int> num_threads_met{0};
    // Each task waits for the other, so that both threads must come.
    threads.run(2, [&](std::int64_t, int) {
      num_threads_met.fetch_add(1);
      while (num_threads_met.load() < 2) std::this_thread::yield();
    });
    CHECK_EQUAL(num_threads_met.load(), 2);
  }
}

}  // namespace
