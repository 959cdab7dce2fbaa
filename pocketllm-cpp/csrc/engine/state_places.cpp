#include "engine/state_places.h"

namespace pocket {

void StatePlaces::move(std::span<const StateMove> moves) {
  for (const StateMove& each : moves) {
    while (each.to >= num_slots_ + static_cast<std::int32_t>(snapshots_.size())) {
      snapshots_.emplace_back(context_.device, states_.slot_bytes());
    }
    if (each.from < 0) {
      states_.clear(context_, each.to);
    } else {
      context_.device.copy(context_.stream.get(), place(each.from), place(each.to), states_.slot_bytes());
    }
  }
}

std::byte* StatePlaces::place(std::int32_t index) noexcept {
  return index < num_slots_ ? states_.slot(index) : snapshots_[static_cast<std::size_t>(index - num_slots_)].data();
}

}  // namespace pocket
