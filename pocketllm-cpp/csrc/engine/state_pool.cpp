#include "engine/state_pool.h"

#include <algorithm>

namespace pocket {

StatePool::StatePool(Context& context, DeltaNetStates& states, std::int32_t num_blocks, std::int32_t max_snapshots)
    : context_(context),
      states_(states),
      max_snapshots_(std::max(0, max_snapshots)),
      index_of_block_(static_cast<std::size_t>(num_blocks), -1) {}

void StatePool::copy_state(const std::byte* from, std::byte* to) {
  context_.device.copy(context_.stream.get(), from, to, states_.slot_bytes());
}

void StatePool::copy(std::int32_t from, std::int32_t to) { copy_state(states_.slot(from), states_.slot(to)); }

void StatePool::save(std::int32_t block, std::int32_t slot) {
  if (max_snapshots_ == 0) return;
  if (!has(block)) {
    // A search over some dozens, once in hundreds of tokens.
    auto place = std::find_if(snapshots_.begin(), snapshots_.end(),
                              [](const Snapshot& each) { return each.block < 0; });
    if (place == snapshots_.end()) {
      if (static_cast<std::int32_t>(snapshots_.size()) < max_snapshots_) {
        snapshots_.push_back({DeviceBuffer(context_.device, states_.slot_bytes()), -1, 0});
        place = snapshots_.end() - 1;
      } else {
        place = std::min_element(snapshots_.begin(), snapshots_.end(),
                                 [](const Snapshot& a, const Snapshot& b) { return a.last_use < b.last_use; });
        drop(place->block);
      }
    }
    place->block = block;
    index_of_block_[static_cast<std::size_t>(block)] = static_cast<std::int32_t>(place - snapshots_.begin());
    ++num_used_;
    copy_state(states_.slot(slot), place->data.data());
  }
  // The same block always has the same state: there is nothing to copy twice.
  snapshots_[static_cast<std::size_t>(index_of_block_[static_cast<std::size_t>(block)])].last_use = ++clock_;
}

void StatePool::restore(std::int32_t block, std::int32_t slot) {
  Snapshot& snapshot = snapshots_[static_cast<std::size_t>(index_of_block_[static_cast<std::size_t>(block)])];
  snapshot.last_use = ++clock_;
  copy_state(snapshot.data.data(), states_.slot(slot));
}

void StatePool::drop(std::int32_t block) noexcept {
  std::int32_t& index = index_of_block_[static_cast<std::size_t>(block)];
  if (index < 0) return;
  snapshots_[static_cast<std::size_t>(index)].block = -1;
  index = -1;
  --num_used_;
}

}  // namespace pocket
