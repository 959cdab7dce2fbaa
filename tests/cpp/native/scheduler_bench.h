// A scheduler without an engine: what each step computes, as a text.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"
#include "engine/scheduler.h"
#include "kernels/devices.h"

namespace scheduling {

using namespace pocket;

inline std::vector<std::int32_t> text(std::int64_t num_tokens, std::int32_t kind = 0) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(num_tokens));
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    tokens[index] = static_cast<std::int32_t>(index * 31 % 97) + 100 * kind;
  }
  return tokens;
}

constexpr std::int32_t kBlockSize = 16;

struct Options {
  std::int32_t num_blocks = 64;
  std::int32_t num_slots = 4;
  std::int64_t budget = 128;
  std::int64_t beside_decodes = 0;
  bool cache = true;
  bool recurrent = false;
  std::int32_t num_snapshots = 16;
};

inline constexpr std::int32_t kSampled = 1;

// Proposes what a test says.
struct Proposals : Drafter {
  std::map<std::uint64_t, std::vector<std::int32_t>> next;  // by handle, for the next step

  void propose(std::span<const DraftRequest> requests) override {
    for (const DraftRequest& request : requests) {
      if (const auto found = next.find(request.handle); found != next.end()) *request.draft = found->second;
    }
  }
};

// Plays the engine: computes nothing, samples kSampled.
struct Bench {
  explicit Bench(const Options& options)
      : pool(options.num_blocks),
        states(options.recurrent ? std::make_unique<StatePool>(options.num_slots, options.num_blocks,
                                                               options.num_snapshots, 64)
                                 : nullptr),
        cache(options.cache ? std::make_unique<PrefixCache>(pool, states.get(), kBlockSize) : nullptr),
        scheduler(pool, cache.get(), states.get(), kBlockSize, options.num_slots) {
    scheduler.set_prefill_token_budget(options.budget, options.beside_decodes);
  }

  std::vector<Sequence*> add(const std::vector<std::int32_t>& prompt, std::size_t num_choices = 1,
                             std::int64_t priority = 0, bool prompt_logprobs = false,
                             std::int64_t max_tokens = 1000) {
    auto group = std::make_shared<PromptGroup>();
    group->priority = priority;
    group->sampling.prompt_logprobs = prompt_logprobs;
    std::vector<Sequence*> added;
    for (std::size_t choice = 0; choice < num_choices; ++choice) {
      auto sequence = std::make_unique<Sequence>();
      sequence->group = group;
      sequence->handle = sequence->arrival = sequences.size();
      sequence->tokens = prompt;
      sequence->num_prompt_tokens = static_cast<std::int64_t>(prompt.size());
      sequence->max_tokens = max_tokens;
      if (cache != nullptr) cache->extend_keys("", prompt, sequence->keys);
      added.push_back(sequence.get());
      sequences.push_back(std::move(sequence));
    }
    scheduler.add(added);
    return added;
  }

  // One step, as "handle:start+length" per entry, a star behind chunks.
  std::string step() {
    const StepPlan& plan = schedule();
    std::ostringstream shown;
    for (const PlannedRows& rows : plan.rows) {
      if (shown.tellp() > 0) shown << ' ';
      shown << rows.sequence->handle << ':' << rows.start << '+' << rows.length << (rows.chunked ? "*" : "");
      CHECK(static_cast<std::int64_t>(rows.sequence->blocks.size()) * kBlockSize >= rows.start + rows.length);
    }
    complete(plan);
    return shown.str();
  }
  const StepPlan& schedule() {
    scheduler.draft(proposals);
    proposals.next.clear();
    return scheduler.schedule();
  }
  // What the engine does once the plan's rows are computed.
  void complete(const StepPlan& plan) {
    std::vector<Sequence*> sampled;
    for (const PlannedRows& rows : plan.rows) {
      if (rows.completes()) sampled.push_back(rows.sequence);
      num_prompt_tokens += rows.num_prompt_tokens();
    }
    for (const PlannedRows& rows : plan.rows) scheduler.advance(rows);
    for (std::size_t index = 0, count = sampled.size(); index < count; ++index) {
      for (Sequence* follower : scheduler.fork(*sampled[index])) sampled.push_back(follower);
    }
    for (Sequence* sequence : sampled) {
      scheduler.take_prompt_report(*sequence);
      std::vector<std::int32_t> taken{kSampled};
      for (const std::int32_t proposed : sequence->draft) {
        if (proposed != kSampled) break;
        taken.push_back(kSampled);
      }
      scheduler.commit(*sequence, taken);
    }
  }
  void finish_all() {
    for (const auto& sequence : sequences) scheduler.finish(*sequence);
    CHECK_EQUAL(pool.num_free(), pool.num_blocks());
    CHECK_EQUAL(scheduler.num_free_slots(), scheduler.max_num_sequences());
    CHECK_EQUAL(scheduler.num_waiting(), 0);
  }

  BlockPool pool;
  std::unique_ptr<StatePool> states;
  std::unique_ptr<PrefixCache> cache;
  Scheduler scheduler;
  Proposals proposals;
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::int64_t num_prompt_tokens = 0;
};

}  // namespace scheduling
