// The engine's thread.
#include <algorithm>
#include <new>
#include <utility>

#include "core/error.h"
#include "engine/loop.h"

namespace pocket {
namespace {

// A step that fails ends its sequences; this many in a row, and the engine itself is taken to be broken.
constexpr int kMaxFailedSteps = 3;

std::string describe(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  return error.what();
}

}  // namespace

void Engine::Loop::run() {
  try {
    work();
  } catch (const std::exception& error) {  // a fault of the loop itself: nobody may wait for ever
    const std::string text = describe(error);
    abandon(FinishReason::kError, text, "The engine's loop failed: " + text);
  }
  // From here on submit() refuses. What is left holds matchers, which are released on this thread.
  Inbox left;
  {
    const std::lock_guard lock(mutex_);
    left = std::exchange(inbox_, {});
  }
  left = {};
  live_.clear();
  const std::lock_guard lock(mutex_);
  has_stopped_ = true;
  stopped_.notify_all();
}

void Engine::Loop::work() {
  while (!is_broken_) {
    if (has_mail_.load(std::memory_order_acquire) && take_messages()) {
      end(all_live(), FinishReason::kCancelled, {}, {});
      return;
    }
    scheduler_.set_prefill_token_budget(prefill_token_budget(), prefill_tokens_beside_decodes());
    const StepPlan& plan = scheduler_.schedule();
    if (!plan.rows.empty()) {
      step(plan);
      continue;
    }
    publish_stats();
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return has_mail_.load(std::memory_order_relaxed); });
  }
}

// True when the engine is to be closed: then no message can follow.
bool Engine::Loop::take_messages() {
  Inbox inbox;
  bool closing = false;
  {
    const std::lock_guard lock(mutex_);
    inbox = std::exchange(inbox_, {});
    closing = closing_;
    has_mail_.store(closing, std::memory_order_relaxed);
  }
  std::vector<Sequence*> choices;
  for (Sequences& arrival : inbox.arrivals) {
    choices.clear();
    for (std::unique_ptr<Sequence>& sequence : arrival) {
      Sampler::start(*sequence);
      choices.push_back(sequence.get());
      live_[choices.back()->handle] = std::move(sequence);
    }
    scheduler_.add(choices);
  }
  std::vector<Sequence*> cancelled;
  for (const std::uint64_t handle : inbox.cancelled) {
    const auto found = live_.find(handle);
    if (found == live_.end()) continue;
    Sequence* sequence = found->second.get();
    if (std::find(cancelled.begin(), cancelled.end(), sequence) == cancelled.end()) cancelled.push_back(sequence);
  }
  if (!cancelled.empty()) end(cancelled, FinishReason::kCancelled, {}, {});
  if (inbox.clear_cache && cache_ != nullptr) cache_->clear();
  return closing;
}

void Engine::Loop::step(const StepPlan& plan) {
  StepBatch batch;
  ended_.clear();
  try {
    const std::span<const SampleRow> completed = runner_.execute(plan);
    for (const PlannedRows& rows : plan.rows) scheduler_.advance(rows);
    if (!completed.empty()) {
      const std::span<const SampleRow> sampled = fork(completed);
      sampler_.sample(runtime_.context(), runner_.logits(), sampled, tokens_);
      commit(sampled, batch);
    }
  } catch (const std::exception& error) {  // whatever a kernel threw, only this step's sequences are lost
    fail_step(plan, describe(error));
    return;
  }
  num_failed_steps_ = 0;
  ++counters_.num_steps;
  for (const PlannedRows& rows : plan.rows) {
    const std::int64_t end = std::min(rows.start + rows.length, rows.sequence->num_prompt_tokens);
    counters_.num_prompt_tokens += std::max<std::int64_t>(0, end - rows.start);
  }
  counters_.num_generated_tokens += static_cast<std::int64_t>(batch.handles.size());
  for (std::size_t index = 0; index < ended_.size(); ++index) retire(*ended_[index], batch.finished[index].reason);
  publish_stats();
  if (!batch.handles.empty() || !batch.finished.empty()) post(std::move(batch));
}

// Lets the choices that waited for a prompt just computed take it over: they sample from its row too.
std::span<const SampleRow> Engine::Loop::fork(std::span<const SampleRow> completed) {
  bool forks = false;
  for (const SampleRow& row : completed) {
    forks = forks || (row.sequence->num_generated() == 0 && !row.sequence->group->followers.empty());
  }
  if (!forks) return completed;
  sampled_.assign(completed.begin(), completed.end());
  for (const SampleRow& row : completed) {
    Sequence& leader = *row.sequence;
    if (leader.num_generated() > 0 || leader.group->followers.empty()) continue;
    if (leader.group->sampling.prompt_logprobs) {
      for (Sequence* follower : leader.group->followers) {
        follower->prompt_logprobs = leader.prompt_logprobs;
        follower->has_prompt_logprobs = true;
      }
    }
    for (const Scheduler::Fork& fork : scheduler_.fork(leader)) {
      if (fork.to >= 0) runtime_.kv().copy_block(runtime_.context(), fork.from, fork.to);
      sampled_.push_back({fork.follower, row.logit_row});
    }
  }
  return sampled_;
}

// Appends each token, decides who ends, and notes the events.
void Engine::Loop::commit(std::span<const SampleRow> sampled, StepBatch& batch) {
  logprob_rows_.clear();
  batch.handles.reserve(sampled.size());
  batch.tokens.reserve(sampled.size());
  batch.flags.reserve(sampled.size());
  for (std::size_t index = 0; index < sampled.size(); ++index) {
    Sequence& sequence = *sampled[index].sequence;
    const SamplingState& state = sequence.sampling;
    const PromptGroup& group = *sequence.group;
    if (!state.error.empty()) {
      batch.finished.push_back({sequence.handle, FinishReason::kError, state.error});
      ended_.push_back(&sequence);
      continue;
    }
    if (!sequence.prompt_reported) {
      sequence.prompt_reported = true;
      batch.prompts.push_back(
          {sequence.handle, sequence.num_cached_tokens, std::exchange(sequence.prompt_logprobs, {})});
    }
    const std::int32_t token = tokens_[index];
    sequence.tokens.push_back(token);
    const bool stopped = std::binary_search(group.stop_ids.begin(), group.stop_ids.end(), token);
    // Without stop ids nothing else tells that a constraint leaves nothing to generate.
    const bool complete = group.stop_ids.empty() && state.matcher && state.matcher.is_done();
    if (group.sampling.logprobs && !stopped) {
      logprob_rows_.push_back({{sampled[index].logit_row, token, group.sampling.num_top_logprobs},
                               static_cast<std::int32_t>(batch.handles.size())});
    }
    batch.handles.push_back(sequence.handle);
    batch.tokens.push_back(token);
    batch.flags.push_back(stopped ? kStopFlag : 0);
    if (stopped || complete || sequence.num_generated() >= sequence.max_tokens) {
      const FinishReason reason = stopped || complete ? FinishReason::kStop : FinishReason::kLength;
      batch.finished.push_back({sequence.handle, reason, {}});
      ended_.push_back(&sequence);
    }
  }
  if (!logprob_rows_.empty()) append_logprobs(runtime_.context(), runner_.logits(), logprob_rows_, batch.logprobs);
}

void Engine::Loop::fail_step(const StepPlan& plan, const std::string& error) {
  if (++num_failed_steps_ >= kMaxFailedSteps) {
    const std::string fatal = "The engine stopped after a failed step: " + error;
    {
      const std::lock_guard lock(mutex_);
      if (fatal_.empty()) fatal_ = fatal;
    }
    is_broken_ = true;
    take_messages();  // the last: nothing is accepted any more
    end(all_live(), FinishReason::kError, error, fatal);
    return;
  }
  std::vector<Sequence*> lost;
  for (const PlannedRows& rows : plan.rows) lost.push_back(rows.sequence);
  for (Sequence* sequence : scheduler_.running()) {
    // Choices that took over a prompt in this step and got no token from it.
    const bool is_forked = sequence->num_computed >= sequence->num_tokens();
    if (is_forked && std::find(lost.begin(), lost.end(), sequence) == lost.end()) lost.push_back(sequence);
  }
  end(lost, FinishReason::kError, error, {});
}

std::vector<Sequence*> Engine::Loop::all_live() const {
  std::vector<Sequence*> sequences;
  for (const auto& [handle, sequence] : live_) sequences.push_back(sequence.get());
  std::sort(sequences.begin(), sequences.end(), ranks_before);
  return sequences;
}

// Frees what the sequences hold and posts their last event.
void Engine::Loop::end(const std::vector<Sequence*>& sequences, FinishReason reason, const std::string& error,
                       const std::string& fatal) {
  StepBatch batch;
  batch.fatal = fatal;
  for (Sequence* sequence : sequences) {
    batch.finished.push_back({sequence->handle, reason, error});
    retire(*sequence, reason);
  }
  publish_stats();
  if (!batch.finished.empty() || !fatal.empty()) post(std::move(batch));
}

// Destroys the sequence.
void Engine::Loop::retire(Sequence& sequence, FinishReason reason) {
  scheduler_.finish(sequence);
  counters_.num_completed += reason == FinishReason::kStop || reason == FinishReason::kLength;
  counters_.num_cancelled += reason == FinishReason::kCancelled;
  live_.erase(sequence.handle);
}

void Engine::Loop::post(StepBatch batch) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) return;
    for (const Finish& finish : batch.finished) open_handles_.erase(finish.handle);
    is_first = events_.post(std::move(batch));
  }
  if (is_first) events_.wake();
}

// A new snapshot, before the events that tell of the change.
void Engine::Loop::publish_stats() {
  EngineStats& now = counters_;
  now.num_slots = scheduler_.max_num_sequences();
  now.num_free_slots = scheduler_.num_free_slots();
  now.num_running = static_cast<std::int64_t>(scheduler_.running().size());
  now.num_waiting = scheduler_.num_waiting();
  now.num_blocks = pool_.num_blocks();
  now.num_free_blocks = pool_.num_free();
  now.num_cached_blocks = cache_ == nullptr ? 0 : cache_->num_blocks();
  const SchedulerCounts& counts = scheduler_.counts();
  now.num_preemptions = counts.num_preemptions;
  now.prefix_cache_hits = counts.cache_hits;
  now.prefix_cache_misses = counts.cache_misses;
  now.prefix_cache_reused_tokens = counts.num_reused_tokens;
  const std::lock_guard lock(mutex_);
  stats_ = now;
}

}  // namespace pocket
