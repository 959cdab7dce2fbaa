// Threads that run the parts of one kernel, and sleep when there is none.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace pocket {

// The calling thread works too, so a pool of n starts n - 1 threads. One caller at a time; a task must not call run().
//
// Tasks are handed out one by one, so a thread that the system holds back takes fewer, and one that has taken none is not
// waited for. Which thread runs a task never changes its result.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(index, thread) for every index in [0, num_tasks), with thread in [0, num_threads); returns when all have
  // returned. The first exception of a task is thrown here after the others have ended.
  template <class Task>
  void run(std::int64_t num_tasks, Task&& task) {
    using Callable = std::remove_reference_t<Task>;
    run_erased(num_tasks, [](void* object, std::int64_t index, int thread) {
      (*static_cast<Callable*>(object))(index, thread);
    }, const_cast<void*>(static_cast<const void*>(std::addressof(task))));
  }

 private:
  using Call = void (*)(void* object, std::int64_t index, int thread);

  void run_erased(std::int64_t num_tasks, Call call, void* object);
  void work(int thread);
  void take_tasks(int thread) noexcept;

  std::vector<std::thread> workers_;
  // A round is one run(): workers wait for its number to change.
  std::atomic<std::uint32_t> round_{0};
  // Tasks that nobody has taken, and tasks that have not ended. A thread that takes one off num_untaken_ may read what
  // follows until it takes it off num_unended_ too: run() changes nothing before that is 0.
  std::atomic<std::int64_t> num_untaken_{0};
  std::atomic<std::int64_t> num_unended_{0};
  std::atomic<bool> failed_{false};
  std::atomic<bool> stopping_{false};
  std::int64_t num_tasks_ = 0;
  Call call_ = nullptr;
  void* object_ = nullptr;
  std::exception_ptr failure_;
};

}  // namespace pocket
