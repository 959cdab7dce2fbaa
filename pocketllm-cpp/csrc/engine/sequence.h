// One choice of one request on its way through the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/matcher.h"
#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "kernels/sampling.h"

namespace pocket {

struct Sequence;

// What the choices of one request have in common. The first one admitted computes the prompt; the others, its
// followers, take over its blocks.
struct PromptGroup {
  SamplingParams sampling;
  std::vector<std::int32_t> stop_ids;  // ascending
  std::string cache_salt;
  std::int64_t priority = 0;
  Sequence* leader = nullptr;
  std::vector<Sequence*> followers;
};

// What sampling keeps of a sequence.
struct SamplingState {
  OwnedMatcher matcher;
  bool penalized = false;
  std::vector<SeenToken> seen;  // of penalized sequences: prompt and answer, every id once
  std::unordered_map<std::int32_t, std::int32_t> index_of_seen;
  std::vector<std::int32_t> taken;  // what the step has sampled for it, until that is committed
  std::string error;                // why the sequence ends: its constraint leaves no token
};

enum class Phase : std::uint8_t { kWaiting, kFollowing, kRunning, kDone };

// `tokens` is the prompt and then the answer. Positions below `num_computed` have their keys and values in `blocks`.
// Touched by the engine's thread alone once it was submitted: `sampling` is written by the sampler's side of a step,
// and everything else by the scheduler.
struct Sequence {
  std::shared_ptr<PromptGroup> group;
  std::uint64_t handle = 0;
  std::uint64_t seed = 0;
  std::uint64_t arrival = 0;  // orders sequences of one priority; unique
  Phase phase = Phase::kWaiting;
  std::vector<std::int32_t> tokens;
  std::int64_t num_prompt_tokens = 0;
  std::int64_t max_tokens = 0;
  std::int64_t num_computed = 0;
  std::vector<std::int32_t> draft;  // proposed behind `tokens`, for the next step to check
  std::vector<std::int32_t> blocks;
  std::int32_t slot = -1;  // while running: its place, and its recurrent state's

  // Prefix cache.
  std::vector<BlockKey> keys;      // of full blocks; empty without a cache
  std::int64_t num_inserted = 0;   // blocks that are in the cache
  std::uint64_t generation = 0;    // of the cache, when it was admitted
  bool inserts = false;            // its full blocks go to the cache
  std::vector<std::int64_t> wanted_snapshots;  // boundaries that waiting sequences would start from
  std::int64_t num_cached_tokens = 0;          // reused when it was first admitted
  bool was_admitted = false;

  SamplingState sampling;
  std::vector<Logprob> prompt_logprobs;
  bool has_prompt_logprobs = false;  // taken over from the choice that computed them
  bool prompt_reported = false;

  std::int64_t num_tokens() const noexcept { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t num_generated() const noexcept { return num_tokens() - num_prompt_tokens; }
  // Only the newest generated token is left to compute.
  bool is_decoding() const noexcept { return num_generated() > 0 && num_computed == num_tokens() - 1; }
  bool wants_prompt_logprobs() const noexcept {
    return group->sampling.prompt_logprobs && !prompt_reported && !has_prompt_logprobs;
  }
};

// Higher priority first, then first come.
inline bool ranks_before(const Sequence* a, const Sequence* b) noexcept {
  if (a->group->priority != b->group->priority) return a->group->priority > b->group->priority;
  return a->arrival < b->arrival;
}

}  // namespace pocket
