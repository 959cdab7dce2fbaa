// The recurrent states of running sequences, and snapshots of them at boundaries that later prompts may start from.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device.h"
#include "kernels/delta_net.h"

namespace pocket {

// A snapshot belongs to the cache block that ends where it was taken. At most `max_snapshots` are kept, the most
// recently used ones. Memory for one is taken when it is first needed. Threads: the engine's alone.
class StatePool {
 public:
  StatePool(Context& context, DeltaNetStates& states, std::int32_t num_blocks, std::int32_t max_snapshots);

  // The slot's sequence starts at position 0.
  void clear(std::int32_t slot) { states_.clear(context_, slot); }
  // `to` goes on from where `from` is.
  void copy(std::int32_t from, std::int32_t to);

  bool has(std::int32_t block) const noexcept { return index_of_block_[static_cast<std::size_t>(block)] >= 0; }
  // Keeps the slot's state as the block's snapshot; gives up the least recently used one when there are too many.
  void save(std::int32_t block, std::int32_t slot);
  // The slot goes on from the block's snapshot, which must be there.
  void restore(std::int32_t block, std::int32_t slot);
  void drop(std::int32_t block) noexcept;

  std::int32_t max_snapshots() const noexcept { return max_snapshots_; }
  std::int32_t num_snapshots() const noexcept { return num_used_; }

 private:
  struct Snapshot {
    DeviceBuffer data;
    std::int32_t block = -1;
    std::uint64_t last_use = 0;
  };

  void copy_state(const std::byte* from, std::byte* to);

  Context& context_;
  DeltaNetStates& states_;
  std::int32_t max_snapshots_;
  std::int32_t num_used_ = 0;
  std::uint64_t clock_ = 0;
  std::vector<Snapshot> snapshots_;
  std::vector<std::int32_t> index_of_block_;  // into snapshots_; -1: none
};

}  // namespace pocket
