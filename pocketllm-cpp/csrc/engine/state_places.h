// The memory of recurrent states: those of running sequences, and snapshots of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/device.h"
#include "engine/step.h"
#include "kernels/context.h"
#include "kernels/recurrent_states.h"

namespace pocket {

// Places 0 to num_slots - 1 are the slots of `states`; place num_slots + i is snapshot i, whose memory is taken when it
// is first needed. Threads: the engine's alone.
class StatePlaces {
 public:
  StatePlaces(Context& context, RecurrentStates& states, std::int32_t num_slots)
      : context_(context), states_(states), num_slots_(num_slots) {}

  // Makes the moves in order. Throws std::bad_alloc, and Error(kEngine) when the device fails.
  void move(std::span<const StateMove> moves);

 private:
  std::byte* place(std::int32_t index) noexcept;

  Context& context_;
  RecurrentStates& states_;
  std::int32_t num_slots_;
  std::vector<DeviceBuffer> snapshots_;
};

}  // namespace pocket
