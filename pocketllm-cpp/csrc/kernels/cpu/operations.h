// The CPU as a device: host memory, and kernels for the instruction set in use.
#pragma once

#include "kernels/context.h"
#include "kernels/operations.h"

namespace pocket::cpu {

Device& device() noexcept;
// Throws Error(kConfiguration) when POCKET_INSTRUCTION_SET names a set that is not there.
Context open(ThreadPool& threads);

// The entries of each folder.
void add_attention(Operations& table) noexcept;
void add_delta_net(Operations& table) noexcept;
void add_elementwise(Operations& table) noexcept;
void add_linear(Operations& table) noexcept;
void add_experts(Operations& table) noexcept;  // of routing/ too
void add_routing(Operations& table) noexcept;
void add_sampling(Operations& table) noexcept;

}  // namespace pocket::cpu
