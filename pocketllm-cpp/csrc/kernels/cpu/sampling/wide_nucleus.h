// Sampling from a nucleus (top_p) of thousands of tokens without sorting them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/sampling/passes.h"

namespace pocket::cpu {

struct WideNucleusScratch {
  std::vector<TokenLogit> candidates;
  std::vector<double> weights;
  std::vector<std::int32_t> buckets;  // of each candidate
  std::vector<double> masses;         // of each bucket
  std::vector<std::int32_t> members;  // candidates of one bucket, most probable first
};

// What a draw needs to know besides the logits. Weights are exp(logit / temperature), relative to the largest one's.
struct NucleusDraw {
  float temperature = 1.0f;
  float largest = 0.0f;  // logit
  double total = 0.0;    // of all weights
  double top_p = 1.0;    // < 1
  double min_p = 0.0;    // weights below it are left out
  double number = 0.0;   // uniform, in [0, 1)
};

// The token that sorting everything would give: of the most probable tokens whose sum reaches top_p (the one that
// crosses the border included), the first whose cumulative weight exceeds number times their sum.
std::int32_t draw_from_wide_nucleus(std::span<const float> logits, const NucleusDraw& draw,
                                    WideNucleusScratch& scratch);

}  // namespace pocket::cpu
