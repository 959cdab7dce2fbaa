// Which recurrent state lies where: those of running sequences in their slots, and snapshots of them at boundaries that
// later prompts may start from. Bookkeeping only.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/step.h"

namespace pocket {

// A snapshot belongs to the cache block that ends where it was taken. At most `max_snapshots` are kept, the most
// recently used ones. What is to be done to the states themselves is gathered as moves of the next step: states change
// in steps alone, so a move that waits for the next one finds what was there when it was asked for.
//
// Threads: the engine's alone.
class StatePool {
 public:
  // `segment_length`: states can be kept at multiples of it alone, since that is where the parts of a prompt that a
  // recurrent layer computes at once begin and end.
  StatePool(std::int32_t num_slots, std::int32_t num_blocks, std::int32_t max_snapshots, std::int64_t segment_length);

  std::int64_t segment_length() const noexcept { return segment_length_; }
  std::int64_t floor_to_segment(std::int64_t num_tokens) const noexcept {
    return num_tokens / segment_length_ * segment_length_;
  }

  // The slot's sequence starts at position 0.
  void clear(std::int32_t slot) { moves_.push_back({-1, slot}); }
  // `to` continues from where `from` is.
  void copy(std::int32_t from, std::int32_t to) { moves_.push_back({from, to}); }

  bool has(std::int32_t block) const noexcept { return index_of_block_[static_cast<std::size_t>(block)] >= 0; }
  // Keeps the slot's state as the block's snapshot; gives up the least recently used one when there are too many.
  void save(std::int32_t block, std::int32_t slot);
  // The slot continues from the block's snapshot, which must be there.
  void restore(std::int32_t block, std::int32_t slot);
  void drop(std::int32_t block) noexcept;

  // The moves asked for since the last call, in order, in place of what `moves` held.
  void take_moves(std::vector<StateMove>& moves);

  std::int32_t max_snapshots() const noexcept { return max_snapshots_; }
  std::int32_t num_snapshots() const noexcept { return num_used_; }

 private:
  struct Snapshot {
    std::int32_t block = -1;
    std::uint64_t last_use = 0;
  };

  std::int32_t num_slots_;
  std::int32_t max_snapshots_;
  std::int64_t segment_length_;
  std::int32_t num_used_ = 0;
  std::uint64_t clock_ = 0;
  std::vector<Snapshot> snapshots_;
  std::vector<std::int32_t> index_of_block_;  // into snapshots_; -1: none
  std::vector<StateMove> moves_;
};

}  // namespace pocket
