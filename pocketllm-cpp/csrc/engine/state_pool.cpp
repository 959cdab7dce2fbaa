#include "engine/state_pool.h"

#include <algorithm>

namespace pocket {

StatePool::StatePool(std::int32_t num_slots, std::int32_t num_blocks, std::int32_t max_snapshots,
                     std::int64_t segment_length)
    : num_slots_(num_slots),
      max_snapshots_(std::max(0, max_snapshots)),
      segment_length_(segment_length),
      index_of_block_(static_cast<std::size_t>(num_blocks), -1) {}

void StatePool::save(std::int32_t block, std::int32_t slot) {
  if (max_snapshots_ == 0) return;
  std::int32_t& index = index_of_block_[static_cast<std::size_t>(block)];
  if (index < 0) {
    // A search over some dozens, once in hundreds of tokens.
    auto place = std::find_if(snapshots_.begin(), snapshots_.end(),
                              [](const Snapshot& each) { return each.block < 0; });
    if (place == snapshots_.end()) {
      if (static_cast<std::int32_t>(snapshots_.size()) < max_snapshots_) {
        place = snapshots_.insert(place, Snapshot{});
      } else {
        place = std::min_element(snapshots_.begin(), snapshots_.end(),
                                 [](const Snapshot& a, const Snapshot& b) { return a.last_use < b.last_use; });
        drop(place->block);
      }
    }
    place->block = block;
    index = static_cast<std::int32_t>(place - snapshots_.begin());
    ++num_used_;
    moves_.push_back({slot, num_slots_ + index});
  }
  // The same block always has the same state: there is nothing to copy twice.
  snapshots_[static_cast<std::size_t>(index)].last_use = ++clock_;
}

void StatePool::restore(std::int32_t block, std::int32_t slot) {
  const std::int32_t index = index_of_block_[static_cast<std::size_t>(block)];
  snapshots_[static_cast<std::size_t>(index)].last_use = ++clock_;
  moves_.push_back({num_slots_ + index, slot});
}

void StatePool::drop(std::int32_t block) noexcept {
  std::int32_t& index = index_of_block_[static_cast<std::size_t>(block)];
  if (index < 0) return;
  snapshots_[static_cast<std::size_t>(index)].block = -1;
  index = -1;
  --num_used_;
}

void StatePool::take_moves(std::vector<StateMove>& moves) {
  moves.swap(moves_);
  moves_.clear();
}

}  // namespace pocket
