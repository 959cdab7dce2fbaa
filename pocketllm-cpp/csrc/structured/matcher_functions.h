// A structured-output matcher as the engine takes it, from here or from core: plain C functions, which need no
// interpreter's lock.
#pragma once

#include <cstdint>

namespace pocket {

// All functions get `object`; those that can fail return 0 on success, and `error` then says why not. One thread at a
// time. The layout is that of pocketllm.structured.c_functions.MatcherFunctions.
struct MatcherFunctions {
  // Writes `num_words` 32-bit words: bit i of word w is 1 when token 32 w + i may come next.
  int (*fill_mask)(void* object, std::uint32_t* words, std::int64_t num_words) = nullptr;
  int (*accept)(void* object, std::int32_t token) = nullptr;
  int (*rollback)(void* object, std::int64_t num_tokens) = nullptr;
  int (*is_done)(void* object) = nullptr;  // 1: nothing may follow but a stop id
  const char* (*error)(void* object) = nullptr;
  void (*release)(void* object) = nullptr;
};

// Both null: no constraint. The owner calls `release` exactly once.
struct MatcherPointers {
  const MatcherFunctions* functions = nullptr;
  void* object = nullptr;
};

}  // namespace pocket
