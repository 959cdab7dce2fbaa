// Who holds which block of the key-value cache. Bookkeeping only.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace pocket {

// Counts the holders of blocks 0 to num_blocks - 1. A block that the prefix cache keeps stays as it is when its last
// holder leaves, and is given away again only when nothing else is free, the least recently held first.
//
// Holders release a sequence's blocks from the last to the first, and the holder of a block holds all before it; so the
// ends of sequences are always older than their beginnings, and no kept block outlives its parent.
//
// Threads: the engine's alone.
class BlockPool {
 public:
  // `give_up(block)` is told of a kept block that is about to be given away.
  using GiveUp = std::function<void(std::int32_t block)>;

  explicit BlockPool(std::int32_t num_blocks);

  void on_give_up(GiveUp give_up) { give_up_ = std::move(give_up); }

  std::int32_t num_blocks() const noexcept { return static_cast<std::int32_t>(entries_.size()); }
  // Without holders, kept or not: what allocate() can give.
  std::int32_t num_free() const noexcept { return static_cast<std::int32_t>(free_.size()) + num_idle_; }
  bool is_held(std::int32_t block) const noexcept { return entry(block).num_holders > 0; }
  std::int32_t num_holders(std::int32_t block) const noexcept { return entry(block).num_holders; }

  // Appends `count` blocks with one holder each. Throws Error(kEngine) when fewer are free: callers ask num_free().
  void allocate(std::int64_t count, std::vector<std::int32_t>& blocks);
  // One more holder for each; shared blocks are read only. They must be held or kept.
  void share(std::span<const std::int32_t> blocks);
  // One holder fewer for each, the last first.
  void release(std::span<const std::int32_t> blocks);

  // The block's content is of use to others: keep it. It must be held.
  void keep(std::int32_t block);
  // It is not any more.
  void forget(std::int32_t block);

 private:
  static constexpr std::int32_t kNone = -1;

  struct Entry {
    std::int32_t num_holders = 0;
    bool kept = false;
    // Neighbours among the idle: kept, without a holder.
    std::int32_t older = kNone;
    std::int32_t newer = kNone;
  };

  const Entry& entry(std::int32_t block) const noexcept { return entries_[static_cast<std::size_t>(block)]; }
  Entry& entry(std::int32_t block) noexcept { return entries_[static_cast<std::size_t>(block)]; }
  void link_newest(std::int32_t block) noexcept;
  void unlink(std::int32_t block) noexcept;

  std::vector<Entry> entries_;
  std::vector<std::int32_t> free_;  // a stack
  std::int32_t oldest_ = kNone;
  std::int32_t newest_ = kNone;
  std::int32_t num_idle_ = 0;
  GiveUp give_up_;
};

}  // namespace pocket
