// Read bandwidth: best of several passes over an array by N threads. Prints bytes per second. An array that fits the last
// cache shows the cache's bandwidth; 1 GiB, which is the size when none is given, shows memory's on most machines.
//
//     bench_bandwidth [threads] [MiB]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/buffer.h"
#include "core/thread_pool.h"

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::int64_t num_mib = argc > 2 ? std::max(1, std::atoi(argv[2])) : 1024;
  constexpr std::int64_t kNumParts = 64;
  const std::int64_t num_words = num_mib * (1 << 20) / 8;
  pocket::Buffer memory(static_cast<std::size_t>(num_words) * 8);
  auto* words = memory.as<std::uint64_t>();
  for (std::int64_t index = 0; index < num_words; ++index) words[index] = static_cast<std::uint64_t>(index);
  pocket::ThreadPool threads(num_threads);
  std::vector<std::uint64_t> sums(kNumParts);
  double best = 0;
  for (std::int64_t pass = 0; pass < 7 * std::max<std::int64_t>(1, 1024 / num_mib); ++pass) {
    const auto start = std::chrono::steady_clock::now();
    threads.run(kNumParts, [&](std::int64_t part, int) {
      const std::uint64_t* from = words + part * (num_words / kNumParts);
      std::uint64_t lanes[32] = {};
      for (std::int64_t index = 0; index < num_words / kNumParts; index += 32) {
        for (int lane = 0; lane < 32; ++lane) lanes[lane] += from[index + lane];
      }
      std::uint64_t sum = 0;
      for (const std::uint64_t lane : lanes) sum += lane;
      sums[static_cast<std::size_t>(part)] = sum;
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(num_words) * 8 / seconds);
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  std::printf("%.0f\n", best);
  return total == 0 ? 1 : 0;
}
