// The engine's inside: messages from any thread, and one thread of its own that steps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/block_pool.h"
#include "engine/engine.h"
#include "engine/event_ring.h"
#include "engine/prefix_cache.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/state_pool.h"
#include "engine/step_runner.h"

namespace pocket {

// Public methods: any thread. Everything they leave to the engine's thread passes through `inbox_`; sequences, blocks,
// matchers and the runtime are touched by that thread alone, within or between steps.
class Engine::Loop {
 public:
  Loop(Runtime& runtime, const EngineOptions& options);
  ~Loop();

  void submit(Request request);
  void cancel(std::uint64_t handle);
  void close(double deadline_s);
  void clear_prefix_cache();
  EngineStats stats() const;

  std::int32_t max_batch_size() const noexcept { return scheduler_.max_num_sequences(); }
  void set_prefill_token_budget(std::int64_t num_tokens) {
    beside_decodes_.store(0, std::memory_order_relaxed);
    budget_.store(num_tokens, std::memory_order_relaxed);
  }
  std::int64_t prefill_token_budget() const { return budget_.load(std::memory_order_relaxed); }
  std::int64_t prefill_tokens_beside_decodes() const { return beside_decodes_.load(std::memory_order_relaxed); }
  EventRing& events() noexcept { return events_; }

 private:
  using Sequences = std::vector<std::unique_ptr<Sequence>>;

  struct Inbox {
    std::vector<Sequences> arrivals;  // the choices of a request each
    std::vector<std::uint64_t> cancelled;
    bool clear_cache = false;
    bool empty() const noexcept { return arrivals.empty() && cancelled.empty() && !clear_cache; }
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
  std::span<const SampleRow> fork(std::span<const SampleRow> completed);
  void commit(std::span<const SampleRow> sampled, StepBatch& batch);
  void fail_step(const StepPlan& plan, const std::string& error);
  void end(const std::vector<Sequence*>& sequences, FinishReason reason, const std::string& error,
           const std::string& fatal);
  std::vector<Sequence*> all_live() const;
  void retire(Sequence& sequence, FinishReason reason);
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
  Scheduler scheduler_;
  StepRunner runner_;
  Sampler sampler_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Sequence>> live_;
  std::vector<SampleRow> sampled_;
  std::vector<std::int32_t> tokens_;
  std::vector<WantedLogprob> logprob_rows_;
  std::vector<Sequence*> ended_;
  EngineStats counters_;
  int num_failed_steps_ = 0;
  bool is_broken_ = false;

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
