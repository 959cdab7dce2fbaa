// Read bandwidth of memory: best of several passes over 1 GiB by N threads. Prints bytes per second.
//
//     bench_bandwidth [threads]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/buffer.h"
#include "core/thread_pool.h"

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : 1;
  constexpr std::int64_t kNumWords = (std::int64_t{1} << 30) / 8;
  constexpr std::int64_t kNumParts = 64;
  pocket::Buffer memory(kNumWords * 8);
  auto* words = memory.as<std::uint64_t>();
  for (std::int64_t index = 0; index < kNumWords; ++index) words[index] = static_cast<std::uint64_t>(index);
  pocket::ThreadPool threads(num_threads);
  std::vector<std::uint64_t> sums(kNumParts);
  double best = 0;
  for (int pass = 0; pass < 7; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    threads.run(kNumParts, [&](std::int64_t part, int) {
      const std::uint64_t* from = words + part * (kNumWords / kNumParts);
      std::uint64_t lanes[32] = {};
      for (std::int64_t index = 0; index < kNumWords / kNumParts; index += 32) {
        for (int lane = 0; lane < 32; ++lane) lanes[lane] += from[index + lane];
      }
      std::uint64_t sum = 0;
      for (const std::uint64_t lane : lanes) sum += lane;
      sums[static_cast<std::size_t>(part)] = sum;
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(kNumWords) * 8 / seconds);
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  std::printf("%.0f\n", best);
  return total == 0 ? 1 : 0;
}
