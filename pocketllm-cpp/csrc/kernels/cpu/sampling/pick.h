// From one row of adjusted logits to a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/sampling/passes.h"
#include "kernels/cpu/sampling/wide_nucleus.h"

namespace pocket::cpu {

// Kept by one thread between calls.
struct PickScratch {
  std::vector<TokenLogit> candidates;
  std::vector<double> weights;
  WideNucleusScratch wide;
};

// By the row's temperature, limits and number; its adjustments have been made.
std::int32_t pick(std::span<const float> logits, const SamplingRow& row, PickScratch& scratch);

}  // namespace pocket::cpu
