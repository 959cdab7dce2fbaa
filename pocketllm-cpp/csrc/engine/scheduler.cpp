#include "engine/scheduler.h"

#include <algorithm>
#include <limits>

#include "kernels/delta_net.h"

namespace pocket {
namespace {

constexpr std::int64_t kChunk = DeltaNetShape::kChunkSize;
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 4;
// The fewest tokens that a second prompt of a step is given: the end of a budget is no use to a long one.
constexpr std::int64_t kSmallestChunk = 64;
// Waiting sequences passed over, since what they share is being computed, before the search for others ends.
constexpr int kMaxPassedOver = 64;
// Rows of prompt log probabilities per step: [rows, vocab] floats are the largest arrays there are.
constexpr std::int64_t kMaxPromptLogprobRows = kChunk;
// Snapshots along a prompt: this dense at first, then sparse.
constexpr std::int64_t kDenseSnapshots = 256;
constexpr std::int64_t kSparseSnapshots = 4096;

std::int64_t floor_to(std::int64_t value, std::int64_t step) noexcept { return value / step * step; }

}  // namespace

Scheduler::Scheduler(BlockPool& pool, PrefixCache* cache, StatePool* states, std::int32_t block_size,
                     std::int32_t max_num_sequences)
    : pool_(pool), cache_(cache), states_(states), block_size_(block_size), max_num_sequences_(max_num_sequences) {
  for (std::int32_t slot = max_num_sequences; slot-- > 0;) free_slots_.push_back(slot);
}

void Scheduler::add(std::span<Sequence* const> sequences) {
  for (Sequence* sequence : sequences) enqueue(*sequence);
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
  std::int64_t budget = budget_ <= 0 ? kUnlimited : budget_;
  if (plan_.num_decodes > 0 && budget_beside_decodes_ > 0) budget = std::min(budget, budget_beside_decodes_);
  for (Sequence* sequence : running_) {
    if (!sequence->is_decoding()) budget = add_rows(*sequence, budget);
  }
  // Blocks given up in this step are for those that run; a newcomer would take them straight back.
  if (counts_.num_preemptions == preemptions_before) admit(budget);
  return plan_;
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

bool Scheduler::is_prefilling(const Sequence& sequence) const noexcept {
  return sequence.phase != Phase::kDone && sequence.num_generated() == 0;
}

void Scheduler::admit(std::int64_t budget) {
  auto next = waiting_.begin();
  int num_passed_over = 0;
  while (next != waiting_.end() && budget > 0 && !free_slots_.empty()) {
    Sequence& sequence = **next;
    PromptGroup& group = *sequence.group;
    if (group.leader != nullptr && group.leader != &sequence && is_prefilling(*group.leader) &&
        sequence.num_generated() == 0) {
      group.followers.push_back(&sequence);
      next = waiting_.erase(next);
      sequence.phase = Phase::kFollowing;
      ++num_following_;
      continue;
    }
    find_reusable(sequence);
    if (should_wait(sequence)) {
      if (++num_passed_over == kMaxPassedOver) return;
      ++next;
      continue;
    }
    const std::int64_t num_total = (sequence.num_tokens() + block_size_ - 1) / block_size_;
    const std::int64_t num_needed = num_total - static_cast<std::int64_t>(reused_.size());
    const std::int64_t num_idle =
        std::count_if(reused_.begin(), reused_.end(), [this](std::int32_t block) { return !pool_.is_held(block); });
    // One spare block per running sequence keeps the newcomer from being thrown out at once.
    const std::int64_t num_spare = static_cast<std::int64_t>(running_.size());
    if (!running_.empty() && num_needed + num_idle + num_spare > pool_.num_free()) return;
    next = waiting_.erase(next);
    start(sequence, num_needed);
    budget = add_rows(sequence, budget);
  }
}

void Scheduler::start(Sequence& sequence, std::int64_t num_needed) {
  sequence.blocks.assign(reused_.begin(), reused_.end());
  pool_.share(sequence.blocks);
  pool_.allocate(num_needed, sequence.blocks);
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  sequence.num_inserted = static_cast<std::int64_t>(reused_.size());
  sequence.num_computed = sequence.num_inserted * block_size_;
  if (cache_ != nullptr) {
    sequence.inserts = true;
    sequence.generation = cache_->generation();
    if (!sequence.wants_prompt_logprobs()) {
      ++(reused_.empty() ? counts_.cache_misses : counts_.cache_hits);
      counts_.num_reused_tokens += sequence.num_computed;
    }
  }
  if (!sequence.was_admitted) {
    sequence.was_admitted = true;
    sequence.num_cached_tokens = sequence.num_computed;
  }
  if (states_ != nullptr) {
    if (reused_.empty()) {
      states_->clear(sequence.slot);
    } else {
      states_->restore(reused_.back(), sequence.slot);
    }
  }
  PromptGroup& group = *sequence.group;
  if (group.leader == nullptr && sequence.num_generated() == 0) group.leader = &sequence;
  run(sequence);
}

void Scheduler::find_reusable(const Sequence& sequence) {
  reused_.clear();
  if (cache_ == nullptr || sequence.wants_prompt_logprobs()) return;
  const std::span<const BlockKey> keys{sequence.keys.data(), num_reusable_keys(sequence)};
  cache_->match(sequence.group->cache_salt, keys, sequence.tokens, reused_);
  if (states_ == nullptr) return;
  while (!reused_.empty() && !states_->has(reused_.back())) reused_.pop_back();
}

// At least one token is computed, for its logits. A recurrent state is only ever that of a prompt.
std::size_t Scheduler::num_reusable_keys(const Sequence& sequence) const noexcept {
  std::int64_t num_tokens = sequence.num_tokens() - 1;
  if (states_ != nullptr) num_tokens = std::min(num_tokens, sequence.num_prompt_tokens);
  return std::min(sequence.keys.size(), static_cast<std::size_t>(num_tokens / block_size_));
}

bool Scheduler::should_wait(const Sequence& sequence) {
  if (cache_ == nullptr || sequence.wants_prompt_logprobs()) return false;
  if (states_ != nullptr && states_->max_snapshots() == 0) return false;
  const std::size_t num_keys = num_reusable_keys(sequence);
  for (Sequence* other : running_) {
    if (!inserts(*other) || other->num_computed >= other->num_prompt_tokens) continue;
    const std::size_t next = reused_.size();
    const std::size_t num_shared_keys = std::min(num_keys, other->keys.size());
    if (next >= num_shared_keys || other->keys[next] != sequence.keys[next]) continue;
    if (states_ == nullptr) {
      if (other->num_computed < static_cast<std::int64_t>(next + 1) * block_size_) return true;
      continue;
    }
    // Keys are chains: equal ones have everything before them in common.
    std::size_t num_common = next + 1;
    while (num_common < num_shared_keys && other->keys[num_common] == sequence.keys[num_common]) ++num_common;
    const std::int64_t boundary =
        floor_to(std::min(static_cast<std::int64_t>(num_common) * block_size_, num_insertable(*other)), kChunk);
    if (boundary <= static_cast<std::int64_t>(next) * block_size_ || other->num_computed > boundary) continue;
    if (other->num_computed < boundary) {
      auto& wanted = other->wanted_snapshots;
      if (std::find(wanted.begin(), wanted.end(), boundary) == wanted.end()) wanted.push_back(boundary);
      return true;
    }
    take_snapshot(*other);
    find_reusable(sequence);
  }
  return false;
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
    length = aligned ? std::min(length, std::max(kChunk, floor_to(budget, kChunk))) : budget;
  }
  if (length < 1) return budget;
  has_prompt_logprobs_ = has_prompt_logprobs_ || all_logits;
  plan_.rows.push_back({&sequence, begin, length, in_prompt});
  return std::max<std::int64_t>(0, budget - length);
}

void Scheduler::advance(const PlannedRows& rows) {
  Sequence& sequence = *rows.sequence;
  sequence.num_computed = rows.start + rows.length;
  insert_full_blocks(sequence);
  if (states_ != nullptr && rows.chunked && is_snapshot_due(sequence)) take_snapshot(sequence);
}

bool Scheduler::inserts(const Sequence& sequence) const noexcept {
  return sequence.inserts && sequence.generation == cache_->generation();
}

// Tokens whose blocks others may use. With recurrent layers: those of whole chunks, as every prompt computes them.
std::int64_t Scheduler::num_insertable(const Sequence& sequence) const noexcept {
  return states_ == nullptr ? sequence.num_tokens() : floor_to(sequence.num_prompt_tokens, kChunk);
}

void Scheduler::insert_full_blocks(Sequence& sequence) {
  const std::int64_t num_full = std::min(sequence.num_computed, num_insertable(sequence)) / block_size_;
  if (sequence.num_inserted >= num_full || !inserts(sequence)) return;
  const std::string& salt = sequence.group->cache_salt;
  cache_->extend_keys(salt, sequence.tokens, sequence.keys);
  const auto num_tokens = static_cast<std::size_t>(block_size_);
  while (sequence.num_inserted < num_full) {
    const auto index = static_cast<std::size_t>(sequence.num_inserted);
    std::int32_t& block = sequence.blocks[index];
    const std::span<const std::int32_t> tokens{sequence.tokens.data() + index * num_tokens, num_tokens};
    const std::int32_t parent = index == 0 ? -1 : sequence.blocks[index - 1];
    const std::int32_t kept = cache_->insert(salt, sequence.keys[index], parent, tokens, block);
    if (kept == PrefixCache::kCollision) {
      sequence.inserts = false;
      return;
    }
    if (kept != block) {
      // Another sequence has computed the same content, bit for bit: hold its block and give up this one.
      pool_.share({&kept, 1});
      pool_.release({&block, 1});
      block = kept;
    }
    ++sequence.num_inserted;
  }
}

// Where the rows of a prompt must end next, so that a snapshot can be taken.
std::int64_t Scheduler::next_snapshot(const Sequence& sequence) const noexcept {
  if (states_->max_snapshots() == 0 || cache_ == nullptr || !inserts(sequence)) return kUnlimited;
  const std::int64_t begin = sequence.num_computed;
  const std::int64_t step = begin < kSparseSnapshots ? kDenseSnapshots : kSparseSnapshots;
  std::int64_t next = floor_to(begin, step) + step;
  // The deepest that an exact repeat of the prompt can start from.
  const std::int64_t last = floor_to(sequence.num_prompt_tokens - 1, kChunk);
  if (last > begin) next = std::min(next, last);
  for (const std::int64_t wanted : sequence.wanted_snapshots) {
    if (wanted > begin) next = std::min(next, wanted);
  }
  return next;
}

bool Scheduler::is_snapshot_due(const Sequence& sequence) const noexcept {
  const std::int64_t end = sequence.num_computed;
  const std::int64_t step = end <= kSparseSnapshots ? kDenseSnapshots : kSparseSnapshots;
  const auto& wanted = sequence.wanted_snapshots;
  // Also behind a prompt of whole chunks, from where a longer one can go on.
  return end % kChunk == 0 && (end % step == 0 || end >= floor_to(sequence.num_prompt_tokens - 1, kChunk) ||
                               std::find(wanted.begin(), wanted.end(), end) != wanted.end());
}

void Scheduler::take_snapshot(Sequence& sequence) {
  if (cache_ == nullptr || !inserts(sequence)) return;
  const std::int64_t num_blocks = sequence.num_computed / block_size_;
  if (num_blocks == 0 || sequence.num_inserted < num_blocks) return;
  states_->save(sequence.blocks[static_cast<std::size_t>(num_blocks - 1)], sequence.slot);
  std::erase(sequence.wanted_snapshots, sequence.num_computed);
}

std::span<const Scheduler::Fork> Scheduler::fork(Sequence& leader) {
  forks_.clear();
  PromptGroup& group = *leader.group;
  const std::vector<Sequence*> followers = std::exchange(group.followers, {});
  num_following_ -= static_cast<std::int64_t>(followers.size());
  const auto num_full = static_cast<std::size_t>(leader.num_prompt_tokens / block_size_);
  const bool has_partial = leader.num_prompt_tokens % block_size_ != 0;
  for (Sequence* follower : followers) {
    if (free_slots_.empty() || pool_.num_free() <= static_cast<std::int32_t>(running_.size())) {
      enqueue(*follower);
      continue;
    }
    Fork fork{follower, -1, -1};
    follower->blocks.assign(leader.blocks.begin(), leader.blocks.begin() + static_cast<std::ptrdiff_t>(num_full));
    pool_.share(follower->blocks);
    if (has_partial) {
      pool_.allocate(1, follower->blocks);
      fork.from = leader.blocks[num_full];
      fork.to = follower->blocks[num_full];
    }
    follower->slot = free_slots_.back();
    free_slots_.pop_back();
    if (states_ != nullptr) states_->copy(leader.slot, follower->slot);
    follower->num_computed = leader.num_computed;
    follower->num_inserted = leader.num_inserted;
    follower->inserts = leader.inserts;
    follower->generation = leader.generation;
    if (!std::exchange(follower->was_admitted, true)) follower->num_cached_tokens = leader.num_cached_tokens;
    run(*follower);
    forks_.push_back(fork);
  }
  return forks_;
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
