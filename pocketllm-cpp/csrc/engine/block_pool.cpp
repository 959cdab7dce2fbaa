#include "engine/block_pool.h"

#include <string>

#include "core/error.h"

namespace pocket {

BlockPool::BlockPool(std::int32_t num_blocks) : entries_(static_cast<std::size_t>(num_blocks)) {
  // Ids leave in rising order, so that a lone sequence gets neighbours.
  free_.reserve(entries_.size());
  for (std::int32_t block = num_blocks; block-- > 0;) free_.push_back(block);
}

void BlockPool::allocate(std::int64_t count, std::vector<std::int32_t>& blocks) {
  if (count > num_free()) {
    throw Error(ErrorKind::kEngine,
                std::to_string(count) + " blocks asked for, " + std::to_string(num_free()) + " are free");
  }
  blocks.reserve(blocks.size() + static_cast<std::size_t>(count));
  for (; count > 0; --count) {
    if (free_.empty()) {
      const std::int32_t victim = oldest_;
      if (give_up_) give_up_(victim);
      forget(victim);
    }
    const std::int32_t block = free_.back();
    free_.pop_back();
    entry(block).num_holders = 1;
    blocks.push_back(block);
  }
}

void BlockPool::share(std::span<const std::int32_t> blocks) {
  for (const std::int32_t block : blocks) {
    Entry& shared = entry(block);
    if (shared.num_holders == 0) {
      if (!shared.kept) {
        throw Error(ErrorKind::kEngine, "block " + std::to_string(block) + " is free and cannot be shared");
      }
      unlink(block);
    }
    ++shared.num_holders;
  }
}

void BlockPool::release(std::span<const std::int32_t> blocks) {
  for (std::size_t index = blocks.size(); index-- > 0;) {
    const std::int32_t block = blocks[index];
    Entry& released = entry(block);
    if (released.num_holders == 0) {
      throw Error(ErrorKind::kEngine, "block " + std::to_string(block) + " is released twice");
    }
    if (--released.num_holders > 0) continue;
    if (released.kept) {
      link_newest(block);
    } else {
      free_.push_back(block);  // reserved for all blocks: does not throw
    }
  }
}

void BlockPool::keep(std::int32_t block) {
  if (entry(block).num_holders == 0) {
    throw Error(ErrorKind::kEngine, "block " + std::to_string(block) + " is free and cannot be kept");
  }
  entry(block).kept = true;
}

void BlockPool::forget(std::int32_t block) {
  Entry& forgotten = entry(block);
  if (!forgotten.kept) return;
  forgotten.kept = false;
  if (forgotten.num_holders == 0) {
    unlink(block);
    free_.push_back(block);
  }
}

void BlockPool::link_newest(std::int32_t block) noexcept {
  Entry& linked = entry(block);
  linked.older = newest_;
  linked.newer = kNone;
  (newest_ == kNone ? oldest_ : entry(newest_).newer) = block;
  newest_ = block;
  ++num_idle_;
}

void BlockPool::unlink(std::int32_t block) noexcept {
  Entry& unlinked = entry(block);
  (unlinked.older == kNone ? oldest_ : entry(unlinked.older).newer) = unlinked.newer;
  (unlinked.newer == kNone ? newest_ : entry(unlinked.newer).older) = unlinked.older;
  unlinked.older = unlinked.newer = kNone;
  --num_idle_;
}

}  // namespace pocket
