// Who may run: newcomers with what they reuse, and the choices that follow another one.
#include <algorithm>
#include <utility>

#include "engine/scheduler.h"

namespace pocket {
namespace {

// Waiting sequences passed over, since what they share is being computed, before the search for others ends.
constexpr int kMaxPassedOver = 64;

}  // namespace

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
    if (waits_for_prefix(sequence)) {
      if (++num_passed_over == kMaxPassedOver) return;
      ++next;
      continue;
    }
    const std::int64_t num_needed = num_blocks_for(sequence.num_tokens()) - std::ssize(reused_);
    const std::int64_t num_idle =
        std::count_if(reused_.begin(), reused_.end(), [this](std::int32_t block) { return !pool_.is_held(block); });
    // One spare block per running sequence keeps the newcomer from being thrown out at once.
    const std::int64_t num_spare = std::ssize(running_);
    if (!running_.empty() && num_needed + num_idle + num_spare > pool_.num_free()) return;
    next = waiting_.erase(next);
    start(sequence, num_needed);
    budget = add_rows(sequence, budget);
  }
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

bool Scheduler::waits_for_prefix(const Sequence& sequence) {
  if (cache_ == nullptr || sequence.wants_prompt_logprobs()) return false;
  if (states_ != nullptr && states_->max_snapshots() == 0) return false;
  for (Sequence* other : running_) {
    const std::int64_t end = find_prefix_under_way(sequence, *other);
    if (end == 0) continue;
    if (states_ == nullptr) return true;
    if (other->num_computed == end) {
      borrow_state(sequence, *other);
      continue;
    }
    auto& wanted = other->wanted_snapshots;
    if (std::find(wanted.begin(), wanted.end(), end) == wanted.end()) wanted.push_back(end);
    return true;
  }
  return false;
}

// The position up to which `other` computes, or has just computed, what `sequence` could use behind reused_; 0: none.
std::int64_t Scheduler::find_prefix_under_way(const Sequence& sequence, const Sequence& other) const noexcept {
  if (!inserts(other) || other.num_computed >= other.num_prompt_tokens) return 0;
  const std::size_t next = reused_.size();
  const std::size_t num_keys = std::min(num_reusable_keys(sequence), other.keys.size());
  if (next >= num_keys || other.keys[next] != sequence.keys[next]) return 0;
  if (states_ == nullptr) {
    const auto end = static_cast<std::int64_t>(next + 1) * block_size_;
    return other.num_computed < end ? end : 0;
  }
  // Keys are chains: equal ones have everything before them in common.
  std::size_t num_common = next + 1;
  while (num_common < num_keys && other.keys[num_common] == sequence.keys[num_common]) ++num_common;
  const std::int64_t num_shared = std::min(static_cast<std::int64_t>(num_common) * block_size_, num_insertable(other));
  const std::int64_t end = states_->floor_to_segment(num_shared);
  return end > static_cast<std::int64_t>(next) * block_size_ && other.num_computed <= end ? end : 0;
}

// `other` stands where the common beginning ends.
void Scheduler::borrow_state(const Sequence& sequence, Sequence& other) {
  take_snapshot(other);
  find_reusable(sequence);
}

void Scheduler::start(Sequence& sequence, std::int64_t num_needed) {
  sequence.blocks.assign(reused_.begin(), reused_.end());
  pool_.share(sequence.blocks);
  pool_.allocate(num_needed, sequence.blocks);
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  sequence.num_inserted = std::ssize(reused_);
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

bool Scheduler::has_room_to_fork() const noexcept {
  return !free_slots_.empty() && pool_.num_free() > std::ssize(running_);
}

std::span<Sequence* const> Scheduler::fork(Sequence& leader) {
  forked_.clear();
  PromptGroup& group = *leader.group;
  if (leader.num_generated() > 0 || group.followers.empty()) return {};
  const std::vector<Sequence*> followers = std::exchange(group.followers, {});
  num_following_ -= std::ssize(followers);
  const auto num_full = static_cast<std::size_t>(leader.num_prompt_tokens / block_size_);
  const bool has_partial = leader.num_prompt_tokens % block_size_ != 0;
  for (Sequence* follower : followers) {
    if (group.sampling.prompt_logprobs) {
      follower->prompt_logprobs = leader.prompt_logprobs;
      follower->has_prompt_logprobs = true;
    }
    if (!has_room_to_fork()) {
      enqueue(*follower);
      continue;
    }
    follower->blocks.assign(leader.blocks.begin(), leader.blocks.begin() + static_cast<std::ptrdiff_t>(num_full));
    pool_.share(follower->blocks);
    if (has_partial) {
      pool_.allocate(1, follower->blocks);
      block_copies_.push_back({leader.blocks[num_full], follower->blocks[num_full]});
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
    forked_.push_back(follower);
  }
  return forked_;
}

}  // namespace pocket
