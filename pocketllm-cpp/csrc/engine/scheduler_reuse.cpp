// What of a sequence others may use: full blocks, and snapshots of recurrent states.
#include <algorithm>
#include <limits>

#include "engine/scheduler.h"

namespace pocket {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
// Snapshots along a prompt: this dense at first, then sparse.
constexpr std::int64_t kDenseSnapshots = 256;
constexpr std::int64_t kSparseSnapshots = 4096;

}  // namespace

bool Scheduler::inserts(const Sequence& sequence) const noexcept {
  return sequence.inserts && sequence.generation == cache_->generation();
}

// Tokens whose blocks others may use. With recurrent state: those of whole segments, as every prompt computes them.
std::int64_t Scheduler::num_insertable(const Sequence& sequence) const noexcept {
  return states_ == nullptr ? sequence.num_tokens() : states_->floor_to_segment(sequence.num_prompt_tokens);
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
  if (states_->max_snapshots() == 0 || cache_ == nullptr || !inserts(sequence)) return kNever;
  const std::int64_t begin = sequence.num_computed;
  const std::int64_t step = begin < kSparseSnapshots ? kDenseSnapshots : kSparseSnapshots;
  std::int64_t next = (begin / step + 1) * step;
  // The deepest that an exact repeat of the prompt can start from.
  const std::int64_t last = states_->floor_to_segment(sequence.num_prompt_tokens - 1);
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
  if (states_->floor_to_segment(end) != end) return false;
  // Also behind a prompt of whole segments, from where a longer one can continue.
  return end % step == 0 || end >= states_->floor_to_segment(sequence.num_prompt_tokens - 1) ||
         std::find(wanted.begin(), wanted.end(), end) != wanted.end();
}

void Scheduler::take_snapshot(Sequence& sequence) {
  if (cache_ == nullptr || !inserts(sequence)) return;
  const std::int64_t num_blocks = sequence.num_computed / block_size_;
  if (num_blocks == 0 || sequence.num_inserted < num_blocks) return;
  states_->save(sequence.blocks[static_cast<std::size_t>(num_blocks - 1)], sequence.slot);
  std::erase(sequence.wanted_snapshots, sequence.num_computed);
}

}  // namespace pocket
