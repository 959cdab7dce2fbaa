#include "engine/scheduler.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace pocket {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 4;
// The fewest tokens that a second prompt of a step is given: a shorter end of a budget is of little use to a long one.
constexpr std::int64_t kSmallestChunk = 64;
// Rows of prompt log probabilities per step: [rows, vocab] floats are the largest arrays there are.
constexpr std::int64_t kMaxPromptLogprobRows = 64;

}  // namespace

Scheduler::Scheduler(BlockPool& pool, PrefixCache* cache, StatePool* states, std::int32_t block_size,
                     std::int32_t max_num_sequences)
    : pool_(pool), cache_(cache), states_(states), block_size_(block_size), max_num_sequences_(max_num_sequences) {
  for (std::int32_t slot = max_num_sequences; slot-- > 0;) free_slots_.push_back(slot);
}

void Scheduler::add(std::span<Sequence* const> sequences) {
  for (Sequence* sequence : sequences) enqueue(*sequence);
}

void Scheduler::draft(Drafter& drafter) {
  draft_requests_.clear();
  for (Sequence* sequence : running_) {
    sequence->draft.clear();
    // The step gives one token in any case.
    const std::int64_t num_more = sequence->max_tokens - sequence->num_generated() - 1;
    if (num_more < 1 || !sequence->is_decoding()) continue;
    draft_requests_.push_back({sequence->handle, sequence->tokens, num_more, &sequence->draft});
  }
  if (draft_requests_.empty()) return;
  drafter.propose(draft_requests_);
  for (const DraftRequest& request : draft_requests_) {
    const auto most = static_cast<std::size_t>(request.max_tokens);
    if (request.draft->size() > most) request.draft->resize(most);
  }
}

const StepPlan& Scheduler::schedule() {
  plan_.rows.clear();
  has_prompt_logprobs_ = false;
  const std::int64_t preemptions_before = counts_.num_preemptions;
  // Preemption takes from the end, so what was passed is neither moved nor lost.
  for (std::size_t index = 0; index < running_.size(); ++index) {
    Sequence& sequence = *running_[index];
    if (sequence.is_decoding() && grow(sequence)) plan_.rows.push_back({&sequence, sequence.num_computed, 1, false});
  }
  plan_.num_decodes = plan_.rows.size();
  fit_drafts();
  std::int64_t budget = budget_ <= 0 ? kUnlimited : budget_;
  if (plan_.num_decodes > 0 && budget_beside_decodes_ > 0) budget = std::min(budget, budget_beside_decodes_);
  for (Sequence* sequence : running_) {
    if (!sequence->is_decoding()) budget = add_rows(*sequence, budget);
  }
  // Blocks given up in this step are for those that run; a newcomer would take them straight back.
  if (counts_.num_preemptions == preemptions_before) admit(budget);
  if (!plan_.rows.empty()) {
    plan_.block_copies.swap(block_copies_);
    block_copies_.clear();
    if (states_ != nullptr) states_->take_moves(plan_.state_moves);
  }
  return plan_;
}

// Lengthens the rows of decoding sequences by their drafts, as far as there are blocks to spare: one for each running
// sequence stays free, since a proposal is not worth a preemption in the next step.
void Scheduler::fit_drafts() {
  for (PlannedRows& rows : plan_.rows) {
    Sequence& sequence = *rows.sequence;
    if (sequence.draft.empty()) continue;
    const std::int64_t num_blocks = std::ssize(sequence.blocks);
    const std::int64_t num_spare = std::max<std::int64_t>(0, pool_.num_free() - std::ssize(running_));
    const std::int64_t room = (num_blocks + num_spare) * block_size_ - rows.start - rows.length;
    const std::int64_t length = std::min(std::ssize(sequence.draft), room);
    sequence.draft.resize(static_cast<std::size_t>(length));
    rows.num_draft = static_cast<std::int32_t>(length);
    rows.length += length;
    pool_.allocate(std::max<std::int64_t>(0, num_blocks_for(rows.start + rows.length) - num_blocks), sequence.blocks);
  }
}

void Scheduler::enqueue(Sequence& sequence) {
  sequence.phase = Phase::kWaiting;
  waiting_.insert(&sequence);
}

void Scheduler::run(Sequence& sequence) {
  sequence.phase = Phase::kRunning;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, ranks_before), &sequence);
}

void Scheduler::stop_running(Sequence& sequence) {
  running_.erase(std::find(running_.begin(), running_.end(), &sequence));
  free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
  pool_.release(sequence.blocks);
  sequence.blocks.clear();
}

void Scheduler::preempt(Sequence& sequence) {
  stop_running(sequence);
  sequence.num_computed = 0;
  sequence.num_inserted = 0;
  sequence.wanted_snapshots.clear();
  sequence.draft.clear();
  if (!sequence.has_prompt_logprobs) sequence.prompt_logprobs.clear();
  ++counts_.num_preemptions;
  enqueue(sequence);
}

// Makes room for the next position; false when the sequence itself had to give way.
bool Scheduler::grow(Sequence& sequence) {
  while (sequence.num_computed >= static_cast<std::int64_t>(sequence.blocks.size()) * block_size_) {
    if (pool_.num_free() > 0) {
      pool_.allocate(1, sequence.blocks);
      continue;
    }
    Sequence& victim = *running_.back();
    preempt(victim);
    if (&victim == &sequence) return false;
  }
  return true;
}

// Appends the sequence's next rows if the budget allows; returns what is left of it.
std::int64_t Scheduler::add_rows(Sequence& sequence, std::int64_t budget) {
  const std::int64_t begin = sequence.num_computed;
  const bool in_prompt = begin < sequence.num_prompt_tokens;
  const bool aligned = in_prompt && states_ != nullptr;
  const std::int64_t num_left = (aligned ? sequence.num_prompt_tokens : sequence.num_tokens()) - begin;
  std::int64_t length = num_left;
  if (aligned) length = std::min(length, next_snapshot(sequence) - begin);
  const bool all_logits = in_prompt && sequence.wants_prompt_logprobs();
  if (all_logits) {
    if (has_prompt_logprobs_) return budget;
    length = std::min(length, kMaxPromptLogprobRows);
  }
  if (length > budget) {
    const bool is_first = plan_.rows.size() == plan_.num_decodes;
    if (!is_first && budget < std::min(kSmallestChunk, num_left)) return budget;
    // A segment at least, whatever the budget: none would be computed otherwise.
    const auto most = aligned ? std::max(states_->segment_length(), states_->floor_to_segment(budget)) : budget;
    length = std::min(length, most);
  }
  if (length < 1) return budget;
  has_prompt_logprobs_ = has_prompt_logprobs_ || all_logits;
  plan_.rows.push_back({&sequence, begin, length, in_prompt});
  return std::max<std::int64_t>(0, budget - length);
}

void Scheduler::advance(const PlannedRows& rows, std::span<Logprob> targets) {
  Sequence& sequence = *rows.sequence;
  sequence.num_computed = rows.start + rows.length - rows.num_draft;
  std::move(targets.begin(), targets.end(), std::back_inserter(sequence.prompt_logprobs));
  insert_full_blocks(sequence);
  if (states_ != nullptr && rows.chunked && is_snapshot_due(sequence)) take_snapshot(sequence);
}

std::optional<PromptReport> Scheduler::take_prompt_report(Sequence& sequence) {
  if (std::exchange(sequence.prompt_reported, true)) return std::nullopt;
  return PromptReport{sequence.handle, sequence.num_cached_tokens, std::exchange(sequence.prompt_logprobs, {})};
}

void Scheduler::commit(Sequence& sequence, std::span<const std::int32_t> tokens) {
  sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
  if (sequence.draft.empty()) return;
  sequence.draft.clear();
  sequence.num_computed += std::ssize(tokens) - 1;
  const auto num_kept = static_cast<std::size_t>(num_blocks_for(sequence.num_computed));
  pool_.release(std::span<const std::int32_t>{sequence.blocks}.subspan(num_kept));
  sequence.blocks.resize(num_kept);
  insert_full_blocks(sequence);
}

void Scheduler::finish(Sequence& sequence) {
  PromptGroup& group = *sequence.group;
  switch (sequence.phase) {
    case Phase::kWaiting: waiting_.erase(&sequence); break;
    case Phase::kFollowing:
      std::erase(group.followers, &sequence);
      --num_following_;
      break;
    case Phase::kRunning: stop_running(sequence); break;
    case Phase::kDone: return;
  }
  sequence.phase = Phase::kDone;
  if (group.leader != &sequence) return;
  group.leader = nullptr;
  num_following_ -= static_cast<std::int64_t>(group.followers.size());
  add(std::exchange(group.followers, {}));
}

}  // namespace pocket
