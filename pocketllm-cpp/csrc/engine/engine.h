// The engine: requests in, batches of events out, one thread of its own that steps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/runtime.h"

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

// Threads: every method may be called from any thread; drain() from one at a time. The runtime must outlive it and is
// touched by the engine's thread alone.
class Engine {
 public:
  Engine(Runtime& runtime, const EngineOptions& options);
  ~Engine();  // close(forever)
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

  EngineStats stats() const;
  std::int32_t max_batch_size() const noexcept;
  void set_prefill_token_budget(std::int64_t num_tokens);  // also beside decodes
  std::int64_t prefill_token_budget() const;
  std::int64_t prefill_tokens_beside_decodes() const;
  void clear_prefix_cache();  // at the next step boundary

  // Readable while batches wait (an eventfd).
  int fileno() const noexcept;
  std::vector<StepBatch> drain();

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace pocket
