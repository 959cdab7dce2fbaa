// The engine's thread.
#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "core/error.h"
#include "engine/engine.h"

namespace pocket {
namespace {

// A step that fails ends its sequences; this many in a row, and the engine itself is taken to be broken.
constexpr int kMaxFailedSteps = 3;

std::string describe(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  return error.what();
}

bool is_stop(const PromptGroup& group, std::int32_t token) {
  return std::binary_search(group.stop_ids.begin(), group.stop_ids.end(), token);
}

// Why the answer ends behind the newest token that the sequence took; nothing when it does not.
std::optional<FinishReason> end_of(const Sequence& sequence) {
  const PromptGroup& group = *sequence.group;
  const SamplingState& state = sequence.sampling;
  if (is_stop(group, state.taken.back())) return FinishReason::kStop;
  // Without stop ids nothing else tells that a constraint leaves nothing to generate.
  if (group.stop_ids.empty() && state.matcher && state.matcher.is_done()) return FinishReason::kStop;
  const std::int64_t num_generated = sequence.num_generated() + std::ssize(state.taken);
  return num_generated >= sequence.max_tokens ? std::optional{FinishReason::kLength} : std::nullopt;
}

}  // namespace

void Engine::run() {
  try {
    work();
  } catch (const std::exception& error) {  // a fault of the loop itself: no stream may wait without end
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

void Engine::work() {
  while (!is_broken_) {
    if (has_mail_.load(std::memory_order_acquire) && take_messages()) {
      end(all_live(), FinishReason::kCancelled, {}, {});
      return;
    }
    if (drafter_ != nullptr) scheduler_.draft(*drafter_);
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
bool Engine::take_messages() {
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

void Engine::step(const StepPlan& plan) {
  StepBatch batch;
  sampled_.clear();
  ended_.clear();
  try {
    make_step(plan, step_);
    advance(plan, runner_.execute(step_));
    sample();
    commit(batch);
  } catch (const std::exception& error) {  // whatever a kernel threw: only this step's sequences are lost
    fail_step(plan, describe(error));
    return;
  }
  num_failed_steps_ = 0;
  ++counters_.num_steps;
  for (const PlannedRows& rows : plan.rows) counters_.num_prompt_tokens += rows.num_prompt_tokens();
  counters_.num_generated_tokens += std::ssize(batch.handles);
  for (const Ended& each : ended_) retire(*each.sequence, each.reason, each.sequence->sampling.error, batch);
  publish_stats();
  if (!batch.handles.empty() || !batch.finished.empty()) post(std::move(batch));
}

// Moves the plan's sequences on, and gathers those that get a token. The choices that waited for a prompt just computed
// take it over and sample from its last row too.
void Engine::advance(const StepPlan& plan, StepOutput& output) {
  std::span<Logprob> targets = output.target_logprobs;
  std::int64_t logit_row = 0;
  for (std::size_t index = 0; index < plan.rows.size(); ++index) {
    const StepSpan& span = step_.spans[index];
    const auto num_targets = static_cast<std::size_t>(span.num_targets);
    scheduler_.advance(plan.rows[index], targets.first(num_targets));
    targets = targets.subspan(num_targets);
    logit_row += span.num_targets;
    if (span.num_logits > 0) sampled_.push_back({plan.rows[index].sequence, logit_row});
    logit_row += span.num_logits;
  }
  for (std::size_t index = 0, num_completed = sampled_.size(); index < num_completed; ++index) {
    const SampleRow row = sampled_[index];
    for (Sequence* follower : scheduler_.fork(*row.sequence)) sampled_.push_back({follower, row.logit_row});
  }
}

// Samples the next token of each sequence, and as long as that is the one proposed, the token behind it as well.
void Engine::sample() {
  std::span<const SampleRow> rows = sampled_;
  while (!rows.empty()) {
    sampler_.sample(runtime_.context(), runner_.logits(), rows, tokens_);
    next_ahead_.clear();
    for (std::size_t index = 0; index < rows.size(); ++index) {
      const SampleRow& row = rows[index];
      if (take(*row.sequence, tokens_[index])) {
        next_ahead_.push_back({row.sequence, row.logit_row + 1, row.num_ahead + 1});
      }
    }
    ahead_.swap(next_ahead_);
    rows = ahead_;
  }
}

// True when the row behind the token counts: the token was proposed, and the answer does not end with it.
bool Engine::take(Sequence& sequence, std::int32_t token) {
  SamplingState& state = sequence.sampling;
  if (!state.error.empty()) return false;
  const std::size_t place = state.taken.size();
  state.taken.push_back(token);
  return place < sequence.draft.size() && sequence.draft[place] == token && !end_of(sequence);
}

// Appends what each sequence took, decides who ends, and notes the events.
void Engine::commit(StepBatch& batch) {
  logprob_rows_.clear();
  batch.handles.reserve(sampled_.size());
  batch.tokens.reserve(sampled_.size());
  batch.flags.reserve(sampled_.size());
  for (const SampleRow& row : sampled_) {
    Sequence& sequence = *row.sequence;
    SamplingState& state = sequence.sampling;
    std::optional<FinishReason> reason;
    if (!state.taken.empty()) {
      reason = end_of(sequence);
      if (auto report = scheduler_.take_prompt_report(sequence)) batch.prompts.push_back(std::move(*report));
      add_events(row, batch);
      scheduler_.commit(sequence, state.taken);
      state.taken.clear();
    }
    if (!state.error.empty()) reason = FinishReason::kError;
    if (reason) ended_.push_back({&sequence, *reason});
  }
  if (!logprob_rows_.empty()) append_logprobs(runtime_.context(), runner_.logits(), logprob_rows_, batch.logprobs);
}

void Engine::add_events(const SampleRow& row, StepBatch& batch) {
  const PromptGroup& group = *row.sequence->group;
  std::int64_t logit_row = row.logit_row;
  for (const std::int32_t token : row.sequence->sampling.taken) {
    const bool stopped = is_stop(group, token);
    if (group.sampling.logprobs && !stopped) {
      const auto column = static_cast<std::int32_t>(batch.handles.size());
      logprob_rows_.push_back({{logit_row, token, group.sampling.num_top_logprobs}, column});
    }
    batch.handles.push_back(row.sequence->handle);
    batch.tokens.push_back(token);
    batch.flags.push_back(stopped ? kStopFlag : 0);
    ++logit_row;
  }
}

void Engine::fail_step(const StepPlan& plan, const std::string& error) {
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
  const auto lose = [&lost](Sequence* sequence) {
    if (std::find(lost.begin(), lost.end(), sequence) == lost.end()) lost.push_back(sequence);
  };
  for (const PlannedRows& rows : plan.rows) lose(rows.sequence);
  for (const SampleRow& row : sampled_) lose(row.sequence);
  for (Sequence* sequence : scheduler_.running()) {
    // Choices that took over a prompt in this step and got no token from it.
    const bool is_forked = sequence->num_computed >= sequence->num_tokens();
    // Its state was to be moved by the step, and may be anything now.
    const bool is_moved = std::any_of(plan.state_moves.begin(), plan.state_moves.end(),
                                      [&](const StateMove& move) { return move.to == sequence->slot; });
    if (is_forked || is_moved) lose(sequence);
  }
  // Snapshots too may not be what the cache takes them for.
  if (!plan.state_moves.empty() && cache_ != nullptr) cache_->clear();
  end(lost, FinishReason::kError, error, {});
}

std::vector<Sequence*> Engine::all_live() const {
  std::vector<Sequence*> sequences;
  for (const auto& [handle, sequence] : live_) sequences.push_back(sequence.get());
  std::sort(sequences.begin(), sequences.end(), ranks_before);
  return sequences;
}

// Frees what the sequences hold and posts their last events.
void Engine::end(const std::vector<Sequence*>& sequences, FinishReason reason, const std::string& error,
                 const std::string& fatal) {
  StepBatch batch;
  batch.fatal = fatal;
  for (Sequence* sequence : sequences) retire(*sequence, reason, error, batch);
  publish_stats();
  if (!batch.finished.empty() || !fatal.empty()) post(std::move(batch));
}

// Notes the last event of the sequence and destroys it.
void Engine::retire(Sequence& sequence, FinishReason reason, const std::string& error, StepBatch& batch) {
  batch.finished.push_back({sequence.handle, reason, error});
  scheduler_.finish(sequence);
  counters_.num_completed += reason == FinishReason::kStop || reason == FinishReason::kLength;
  counters_.num_cancelled += reason == FinishReason::kCancelled;
  live_.erase(sequence.handle);
}

void Engine::post(StepBatch batch) {
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
void Engine::publish_stats() {
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
