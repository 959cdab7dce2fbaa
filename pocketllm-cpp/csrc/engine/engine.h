// The engine: requests in, batches of events out, one thread of its own that steps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/block_pool.h"
#include "engine/drafter.h"
#include "engine/event_ring.h"
#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "engine/runtime.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/state_pool.h"
#include "engine/step.h"
#include "engine/step_runner.h"

namespace pocket {

struct EngineOptions {
  std::int32_t max_batch_size = 8;        // clamped to the runtime's slots
  std::int64_t prefill_token_budget = 512;  // prompt tokens per step; 0: whole prompts
  // Prompt tokens of a step that other sequences decode in, which all wait for them; 0: as many as the budget.
  std::int64_t prefill_tokens_beside_decodes = 0;
  bool prefix_cache = true;
  std::int64_t vocab_size = 0;  // ids that may be generated; 0: the model's
};

struct EngineStats {
  std::int64_t num_running = 0, num_waiting = 0, num_steps = 0;
  std::int64_t num_slots = 0, num_free_slots = 0, num_blocks = 0, num_free_blocks = 0, num_cached_blocks = 0;
  std::int64_t num_preemptions = 0, num_prompt_tokens = 0, num_generated_tokens = 0;
  std::int64_t num_completed = 0, num_cancelled = 0;
  std::int64_t prefix_cache_hits = 0, prefix_cache_misses = 0, prefix_cache_reused_tokens = 0;
};

// Threads: every public method may be called from any thread; drain() from one at a time. What they leave to the
// engine's thread passes through `inbox_`. Sequences, blocks, matchers and the runtime, which must outlive the engine,
// are touched by that thread alone, within or between steps.
//
// engine.cpp is the engine as its callers see it, loop.cpp is the loop of its thread.
class Engine {
 public:
  // `drafter`: proposes tokens; without one, a step gives a sequence one token. Throws Error(kUnsupportedFeature) when
  // there is one and the model has recurrent layers, whose states cannot be taken back.
  Engine(Runtime& runtime, const EngineOptions& options, std::unique_ptr<Drafter> drafter = nullptr);
  ~Engine();  // closes, and waits for the step that is under way
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request; takes over its matchers, which are released also when this throws.
  // Throws Error(kConfiguration) for ids outside the vocabulary or a prompt that leaves no room for a token;
  // Error(kEngine) when closed or broken.
  void submit(Request request);
  // Ends the sequence at the next step boundary. Unknown handles are fine.
  void cancel(std::uint64_t handle);
  // Sequences that have not ended get Finish "cancelled" before this returns; waits at most deadline_s for a step.
  void close(double deadline_s);
  void clear_prefix_cache();  // at the next step boundary

  EngineStats stats() const;
  std::int32_t max_batch_size() const noexcept { return scheduler_.max_num_sequences(); }
  // Also beside decodes.
  void set_prefill_token_budget(std::int64_t num_tokens) {
    beside_decodes_.store(0, std::memory_order_relaxed);
    budget_.store(num_tokens, std::memory_order_relaxed);
  }
  std::int64_t prefill_token_budget() const { return budget_.load(std::memory_order_relaxed); }
  std::int64_t prefill_tokens_beside_decodes() const { return beside_decodes_.load(std::memory_order_relaxed); }

  // Readable while batches wait (an eventfd).
  int fileno() const noexcept { return events_.fileno(); }
  std::vector<StepBatch> drain() { return events_.drain(); }

 private:
  using Sequences = std::vector<std::unique_ptr<Sequence>>;

  struct Inbox {
    std::vector<Sequences> arrivals;  // the choices of a request each
    std::vector<std::uint64_t> cancelled;
    bool clear_cache = false;
  };
  struct Ended {
    Sequence* sequence = nullptr;
    FinishReason reason = FinishReason::kStop;
  };

  // On the caller's thread.
  Sequences make_sequences(Request& request) const;
  void check(const Request& request) const;
  void abandon(FinishReason reason, const std::string& error, const std::string& fatal);

  // On the engine's thread.
  void run();
  void work();
  bool take_messages();
  void step(const StepPlan& plan);
  void advance(const StepPlan& plan, StepOutput& output);
  void sample();
  static bool take(Sequence& sequence, std::int32_t token);
  void commit(StepBatch& batch);
  void add_events(const SampleRow& row, StepBatch& batch);
  void fail_step(const StepPlan& plan, const std::string& error);
  void end(const std::vector<Sequence*>& sequences, FinishReason reason, const std::string& error,
           const std::string& fatal);
  std::vector<Sequence*> all_live() const;
  void retire(Sequence& sequence, FinishReason reason, const std::string& error, StepBatch& batch);
  void post(StepBatch batch);
  void publish_stats();

  Runtime& runtime_;
  std::int64_t vocab_size_;
  EventRing events_;
  std::atomic<std::int64_t> budget_;
  std::atomic<std::int64_t> beside_decodes_;

  // The engine's thread alone.
  BlockPool pool_;
  std::unique_ptr<StatePool> states_;
  std::unique_ptr<PrefixCache> cache_;
  std::unique_ptr<Drafter> drafter_;
  Scheduler scheduler_;
  StepRunner runner_;
  Sampler sampler_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Sequence>> live_;
  EngineStats counters_;
  int num_failed_steps_ = 0;
  bool is_broken_ = false;
  // Of one step; kept, so that a step allocates nothing once they have grown.
  StepInput step_;
  std::vector<SampleRow> sampled_;             // the first row of each sequence that gets a token
  std::vector<SampleRow> ahead_, next_ahead_;  // rows behind proposals that came true
  std::vector<std::int32_t> tokens_;
  std::vector<WantedLogprob> logprob_rows_;
  std::vector<Ended> ended_;

  mutable std::mutex mutex_;  // guards what follows; never held while a step computes
  std::condition_variable wake_;
  std::condition_variable stopped_;
  Inbox inbox_;
  std::unordered_set<std::uint64_t> open_handles_;
  std::uint64_t num_arrivals_ = 0;
  EngineStats stats_;
  std::string fatal_;
  bool closing_ = false;
  bool abandoned_ = false;  // every handle has been answered: the thread posts nothing any more
  bool has_stopped_ = false;
  std::atomic<bool> has_mail_{false};  // spares the lock in a step without messages

  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace pocket
