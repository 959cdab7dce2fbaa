// The reference device: every operation by its definition, in double precision, a row at a time. It is slow, and is for
// judging other devices and what stands above them.
#pragma once

#include <span>

#include "kernels/context.h"
#include "kernels/operations.h"

namespace pocket::reference {

Context open(ThreadPool& threads);

// A step's sequences, as the device has copied them.
std::span<const SequenceRows> rows_of(const Context& context, const SequenceTable& sequences);

// The entries of each file.
void add_attention(Operations& table) noexcept;
void add_delta_net(Operations& table) noexcept;
void add_elementwise(Operations& table) noexcept;
void add_linear(Operations& table) noexcept;
void add_routing(Operations& table) noexcept;
void add_sampling(Operations& table) noexcept;

}  // namespace pocket::reference
