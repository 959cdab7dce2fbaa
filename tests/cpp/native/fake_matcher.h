// A scripted structured-output matcher.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "structured/matcher_functions.h"

struct FakeMatcher {
  std::vector<std::vector<std::int32_t>> allowed;  // per generated token; past the end fill_mask fails
  std::size_t position = 0;
  bool refuses = false;
  std::atomic<int> num_released{0};
  std::vector<std::int32_t> accepted;

  pocket::MatcherPointers as_matcher() { return {functions(), this}; }

  static const pocket::MatcherFunctions* functions() {
    static const pocket::MatcherFunctions table{
        [](void* object, std::uint32_t* words, std::int64_t) {
          auto& self = *static_cast<FakeMatcher*>(object);
          if (self.position >= self.allowed.size()) return 1;
          for (const std::int32_t id : self.allowed[self.position]) words[id / 32] |= std::uint32_t{1} << (id % 32);
          return 0;
        },
        [](void* object, std::int32_t token) {
          auto& self = *static_cast<FakeMatcher*>(object);
          if (self.refuses) return 1;
          ++self.position;
          self.accepted.push_back(token);
          return 0;
        },
        [](void*, std::int64_t) { return 0; },
        [](void* object) {
          auto& self = *static_cast<FakeMatcher*>(object);
          return self.position + 1 >= self.allowed.size() ? 1 : 0;
        },
        [](void*) { return "nothing fits"; },
        [](void* object) { ++static_cast<FakeMatcher*>(object)->num_released; },
    };
    return &table;
  }
};
