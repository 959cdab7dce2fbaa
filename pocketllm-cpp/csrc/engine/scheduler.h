// Which tokens the next step computes: continuous batching, admission by blocks, chunked prefill, preemption. The
// policy is told in tests/scheduling/README.md, and the Torch engine keeps the same one.
//
// A step decodes one token of every running sequence that has one to decode, and computes prompt tokens within a budget
// of their own, best rank first. Decoding therefore never waits for somebody else's long prompt, and prompts advance in
// every step. When blocks run out, the sequence that ranks last gives its own back and waits; what the cache does not
// hold by the time it is admitted again is recomputed.
//
// Models with recurrent layers compute prompts in segments whose bits depend on where they begin. The chunks of their
// prompts therefore begin and end at multiples of the segment's length (but for the prompt's end), and generated tokens
// are computed one by one also when they are replayed: every plan gives the same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "engine/block_pool.h"
#include "engine/drafter.h"
#include "engine/prefix_cache.h"
#include "engine/sequence.h"
#include "engine/state_pool.h"
#include "engine/step_plan.h"

namespace pocket {

struct SchedulerCounts {
  std::int64_t num_preemptions = 0;
  std::int64_t cache_hits = 0;  // admissions that reused something
  std::int64_t cache_misses = 0;
  std::int64_t num_reused_tokens = 0;
};

// Owns the waiting and running sequences' blocks and slots, not the sequences; but for the sampler's part of them, what
// changes in a sequence is changed here. Threads: the engine's alone.
//
// scheduler.cpp chooses a step's rows and moves sequences on, scheduler_admission.cpp lets waiting ones in, and
// scheduler_reuse.cpp says what of a sequence others may use.
class Scheduler {
 public:
  // `cache` is null when prefixes are not shared, `states` for models without recurrent layers.
  Scheduler(BlockPool& pool, PrefixCache* cache, StatePool* states, std::int32_t block_size,
            std::int32_t max_num_sequences);

  // Prompt tokens per step (0: whole prompts), and per step with decodes (0: as many).
  void set_prefill_token_budget(std::int64_t num_tokens, std::int64_t num_beside_decodes = 0) noexcept {
    budget_ = num_tokens;
    budget_beside_decodes_ = num_beside_decodes;
  }

  void add(std::span<Sequence* const> sequences);
  // Has tokens proposed behind the newest one of those that decode in the next step.
  void draft(Drafter& drafter);
  // The next step's work, with the blocks it writes to; valid until the next call. Empty when nothing can run.
  const StepPlan& schedule();
  // The rows have been computed: moves the sequence on and shares its full blocks. `targets`: the log probabilities of
  // its prompt that came with them. Proposals count once they are committed.
  void advance(const PlannedRows& rows, std::span<Logprob> targets = {});
  // Gives the leader's computed prompt to the choices that wait for it, as far as slots and blocks reach; the others
  // compute what the cache does not give them. Returns those that now run; their copies are part of the next step.
  std::span<Sequence* const> fork(Sequence& leader);
  // What is known of the prompt, once: before the first token.
  std::optional<PromptReport> take_prompt_report(Sequence& sequence);
  // Appends the tokens that a step gave: sampled ones, all but the last of which the step has computed as proposals.
  // What it computed of other proposals is given up.
  void commit(Sequence& sequence, std::span<const std::int32_t> tokens);
  // Takes a sequence out, wherever it is.
  void finish(Sequence& sequence);

  std::span<Sequence* const> running() const noexcept { return running_; }
  std::int64_t num_waiting() const noexcept { return static_cast<std::int64_t>(waiting_.size()) + num_following_; }
  std::int32_t max_num_sequences() const noexcept { return max_num_sequences_; }
  std::int32_t num_free_slots() const noexcept { return static_cast<std::int32_t>(free_slots_.size()); }
  const SchedulerCounts& counts() const noexcept { return counts_; }

 private:
  struct ByRank {
    bool operator()(const Sequence* a, const Sequence* b) const noexcept { return ranks_before(a, b); }
  };
  using Queue = std::set<Sequence*, ByRank>;

  void enqueue(Sequence& sequence);
  void run(Sequence& sequence);
  void stop_running(Sequence& sequence);
  void preempt(Sequence& sequence);
  bool grow(Sequence& sequence);

  std::int64_t num_blocks_for(std::int64_t num_tokens) const noexcept {
    return (num_tokens + block_size_ - 1) / block_size_;
  }
  void fit_drafts();
  std::int64_t add_rows(Sequence& sequence, std::int64_t budget);

  void admit(std::int64_t budget);
  // Blocks of the cache that the sequence can start from; into reused_.
  void find_reusable(const Sequence& sequence);
  std::size_t num_reusable_keys(const Sequence& sequence) const noexcept;
  // True when a running sequence is about to compute what this one could reuse; asks it for a snapshot where one is
  // needed.
  bool waits_for_prefix(const Sequence& sequence);
  std::int64_t find_prefix_under_way(const Sequence& sequence, const Sequence& other) const noexcept;
  void borrow_state(const Sequence& sequence, Sequence& other);
  void start(Sequence& sequence, std::int64_t num_needed);
  bool is_prefilling(const Sequence& sequence) const noexcept;
  bool has_room_to_fork() const noexcept;

  bool inserts(const Sequence& sequence) const noexcept;
  std::int64_t num_insertable(const Sequence& sequence) const noexcept;
  void insert_full_blocks(Sequence& sequence);
  std::int64_t next_snapshot(const Sequence& sequence) const noexcept;
  bool is_snapshot_due(const Sequence& sequence) const noexcept;
  void take_snapshot(Sequence& sequence);

  BlockPool& pool_;
  PrefixCache* cache_;
  StatePool* states_;
  std::int64_t block_size_;
  std::int32_t max_num_sequences_;
  std::int64_t budget_ = 0;
  std::int64_t budget_beside_decodes_ = 0;
  Queue waiting_;
  std::vector<Sequence*> running_;  // best rank first
  std::vector<std::int32_t> free_slots_;
  std::int64_t num_following_ = 0;
  StepPlan plan_;
  bool has_prompt_logprobs_ = false;  // the plan has rows whose logits are all wanted
  std::vector<BlockCopy> block_copies_;  // of the next step
  std::vector<Sequence*> forked_;
  std::vector<DraftRequest> draft_requests_;
  std::vector<std::int32_t> reused_;
  SchedulerCounts counts_;
};

}  // namespace pocket
