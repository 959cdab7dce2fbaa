// What the fuzzers of the readers share: mutations, a bound on memory, and a run that ends with one line of JSON.
//
// A program includes this once. It tries mutated inputs for --seconds, beginning with --seed; an input that does
// anything but parse or end in a pocket::Error stops it, and lies in the file that is named then.
#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <malloc.h>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include "checkpoint_bytes.h"
#include "core/error.h"

extern "C" void __attribute__((weak)) __sanitizer_set_death_callback(void (*callback)());

namespace fuzz {

inline std::size_t live_bytes = 0;
inline std::size_t peak_bytes = 0;

inline void* counted(std::size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  live_bytes += malloc_usable_size(memory);
  peak_bytes = std::max(peak_bytes, live_bytes);
  return memory;
}

inline void uncounted(void* memory) noexcept {
  if (memory != nullptr) live_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace fuzz

void* operator new(std::size_t size) { return fuzz::counted(size); }
void operator delete(void* memory) noexcept { fuzz::uncounted(memory); }
void operator delete(void* memory, std::size_t) noexcept { fuzz::uncounted(memory); }

namespace fuzz {

using Random = std::mt19937_64;

// One kind of input: honest examples, and what to do with a mutated one.
struct Subject {
  std::string name;
  std::vector<std::string> seeds;
  std::vector<std::string> pieces;  // put where a digit stands; empty for binary formats
  bool framed = false;              // begins with a u64 length of the text that follows
  std::function<void(const std::string& bytes)> exercise;
};

inline std::size_t below(Random& random, std::size_t limit) { return limit == 0 ? 0 : random() % limit; }

inline const std::string& any(Random& random, const std::vector<std::string>& of) {
  return of[below(random, of.size())];
}

inline void replace_digit(std::string& out, Random& random, const Subject& subject) {
  const std::size_t start = subject.framed ? std::min<std::size_t>(8, out.size()) : 0;
  std::vector<std::size_t> digits;
  for (std::size_t at = start; at < out.size(); ++at) {
    if (out[at] >= '0' && out[at] <= '9') digits.push_back(at);
  }
  const std::size_t at = digits.empty() ? out.size() : digits[below(random, digits.size())];
  out.replace(at, digits.empty() ? 0 : 1, any(random, subject.pieces));
  const std::size_t end = out.rfind('}');
  if (subject.framed && end != std::string::npos && end >= 8) {
    out.replace(0, 8, checkpoint_bytes::packed<std::uint64_t>(end + 1 - 8));  // so that it is read
  }
}

// One to four changes: bits, extreme numbers, cuts, doubled and foreign pieces, truncation.
inline std::string mutated(const Subject& subject, Random& random) {
  constexpr std::uint64_t kOne = 1;
  static constexpr std::uint64_t kNumbers[] = {0,          1,          2,          7,          255,
                                               256,        65535,      kOne << 31, UINT32_MAX, kOne << 32,
                                               kOne << 40, kOne << 60, kOne << 63, UINT64_MAX, UINT64_MAX - 31};
  std::string out = any(random, subject.seeds);
  const std::size_t num_changes = 1 + below(random, 4);
  for (std::size_t change = 0; change < num_changes; ++change) {
    const std::size_t at = below(random, out.size() + 1);
    const std::size_t length = std::min(1 + below(random, 64), out.size() - at);
    const std::uint64_t number = kNumbers[below(random, std::size(kNumbers))];
    switch (below(random, subject.pieces.empty() ? 8 : 10)) {
      case 0: if (at < out.size()) out[at] = static_cast<char>(out[at] ^ (1 << below(random, 8))); break;
      case 1: out.replace(at, 8, checkpoint_bytes::packed(number)); break;
      case 2: out.replace(at, 4, checkpoint_bytes::packed(static_cast<std::uint32_t>(number))); break;
      case 3: out.erase(at, length); break;
      case 4: out.insert(at, out.substr(at, length)); break;
      case 5: for (std::size_t byte = at; byte < at + length; ++byte) out[byte] = static_cast<char>(random()); break;
      case 6: out.resize(at); break;
      case 7: {
        const std::string& other = any(random, subject.seeds);
        out.replace(at, length, other.substr(below(random, other.size() + 1), 1 + below(random, 64)));
        break;
      }
      default: replace_digit(out, random, subject);
    }
  }
  return out;
}

inline std::string current;         // the input being tried
inline std::string current_subject;

inline void keep_current() {
  char path[] = "/tmp/pocket-fuzz-XXXXXX";
  const int file = ::mkstemp(path);
  const ssize_t written = file < 0 ? -1 : ::write(file, current.data(), current.size());
  std::fprintf(stderr, "{\"failed\": \"%s\", \"input\": \"%s\", \"kept_bytes\": %zd}\n", current_subject.c_str(), path,
               written);
}

inline void on_alarm(int) {
  keep_current();
  std::_Exit(3);
}

inline volatile unsigned char seen;

// Reads the ends of a tensor's bytes.
inline void touch(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  seen = static_cast<unsigned char>(bytes.front());
  seen = static_cast<unsigned char>(bytes.back());
}

inline int run(int argc, char** argv, const std::vector<Subject>& subjects) {
  double seconds = 10;
  std::uint64_t seed = 0;
  for (int index = 1; index + 1 < argc; index += 2) {
    if (std::strcmp(argv[index], "--seconds") == 0) seconds = std::atof(argv[index + 1]);
    if (std::strcmp(argv[index], "--seed") == 0) seed = std::strtoull(argv[index + 1], nullptr, 10);
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(keep_current);
  std::signal(SIGALRM, on_alarm);
  for (const Subject& subject : subjects) {
    for (const std::string& honest : subject.seeds) subject.exercise(honest);  // must not throw
  }
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  const auto since = [](Clock::time_point start) { return Seconds(Clock::now() - start).count(); };
  const Clock::time_point started = Clock::now();
  Random random(seed);
  std::uint64_t tried = 0;
  std::uint64_t opened = 0;
  double slowest = 0;
  double most_memory = 0;
  while (since(started) < seconds) {
    const Subject& subject = subjects[below(random, subjects.size())];
    current = mutated(subject, random);
    current_subject = subject.name;
    const Clock::time_point begun = Clock::now();
    const std::size_t before = live_bytes;
    peak_bytes = before;
    ::alarm(20);
    try {
      subject.exercise(current);
      ++opened;
    } catch (const pocket::Error&) {
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      keep_current();
      return 1;
    }
    ::alarm(0);
    ++tried;
    slowest = std::max(slowest, since(begun));
    most_memory = std::max(most_memory, static_cast<double>(peak_bytes - before));
    // A value of a JSON text takes some 64 bytes for two characters, and twice that while its array grows.
    if (peak_bytes - before > (std::size_t{1} << 16) + 128 * current.size()) {
      std::fprintf(stderr, "%zu bytes were taken for a file of %zu\n", peak_bytes - before, current.size());
      keep_current();
      return 1;
    }
  }
  std::printf("{\"tried\": %llu, \"opened\": %llu, \"slowest_s\": %.4f, \"peak_bytes\": %.0f, \"seed\": %llu}\n",
              static_cast<unsigned long long>(tried), static_cast<unsigned long long>(opened), slowest, most_memory,
              static_cast<unsigned long long>(seed));
  return 0;
}

}  // namespace fuzz
