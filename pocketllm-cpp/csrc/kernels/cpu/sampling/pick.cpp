#include "kernels/cpu/sampling/pick.h"

#include <algorithm>
#include <cmath>

namespace pocket::cpu {
namespace {

// Candidates looked at first for top_p, which seldom needs more.
constexpr std::int64_t kNucleusCandidates = 256;
// Logits this much below min_p's border (in units of the scaled logit) are candidates whose weight decides exactly.
constexpr float kBorderSlack = 1e-3f;

// exp(logit / temperature), relative to the largest: divided in single precision, the rest in double, as the Torch
// backend does, so that both choose the same token.
void weigh(std::span<const TokenLogit> candidates, float temperature, float largest, std::vector<double>& weights) {
  const double offset = largest / temperature;
  weights.resize(candidates.size());
  for (std::size_t index = 0; index < candidates.size(); ++index) {
    weights[index] = std::exp(static_cast<double>(candidates[index].logit / temperature) - offset);
  }
}

// False for rows that say nothing: infinite, or without a number.
bool has_finite_front(std::span<const TokenLogit> candidates) noexcept {
  return !candidates.empty() && std::isfinite(candidates.front().logit);
}

double sum(std::span<const double> weights) noexcept {
  double total = 0.0;
  for (const double weight : weights) total += weight;
  return total;
}

// How many of the weights, largest first, it takes to reach `top_p` of `total`; the one that crosses the border
// included. All when they do not reach it.
std::size_t nucleus_size(std::span<const double> weights, double total, double top_p) noexcept {
  double before = 0.0;
  std::size_t count = 0;
  while (count < weights.size() && before / total < top_p) before += weights[count++];
  return count;
}

// The index of the first weight past the drawn mass; never one of weight 0.
std::size_t draw_index(std::span<const double> weights, double number) noexcept {
  const double target = sum(weights) * number;
  double cumulative = 0.0;
  std::size_t last = 0;
  for (std::size_t index = 0; index < weights.size(); ++index) {
    if (weights[index] <= 0.0) continue;
    cumulative += weights[index];
    last = index;
    if (cumulative > target) break;
  }
  return last;
}

void apply_min_p(std::span<double> weights, double min_p) noexcept {
  if (min_p <= 0.0) return;
  const double least = min_p * *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) {
    if (weight < least) weight = 0.0;
  }
}

}  // namespace

std::int32_t pick(std::span<const float> logits, const SamplingRow& row, PickScratch& scratch) {
  if (row.is_greedy()) return argmax(logits);
  const auto num_logits = static_cast<std::int64_t>(logits.size());
  const bool has_top_k = row.top_k > 0 && row.top_k < num_logits;
  const bool has_top_p = row.top_p < 1.0f;
  const float temperature = row.temperature;
  auto& candidates = scratch.candidates;
  auto& weights = scratch.weights;
  if (!has_top_k && !has_top_p) {
    if (row.min_p <= 0.0f) return draw(logits, 1.0f / temperature, row.uniform);
    const float largest = logits[static_cast<std::size_t>(argmax(logits))];
    const float border = largest + temperature * (std::log(row.min_p) - kBorderSlack);
    collect_at_least(logits, border, 0, candidates);
    if (!has_finite_front(candidates)) return argmax(logits);
    weigh(candidates, temperature, largest, weights);
    apply_min_p(weights, row.min_p);
    return candidates[draw_index(weights, row.uniform)].id;
  }
  if (has_top_k) {
    top_logits(logits, row.top_k, candidates);
    if (!has_finite_front(candidates)) return argmax(logits);
    weigh(candidates, temperature, candidates.front().logit, weights);
    if (has_top_p) weights.resize(nucleus_size(weights, sum(weights), row.top_p));
  } else {
    top_logits(logits, kNucleusCandidates, candidates);
    if (!has_finite_front(candidates)) return argmax(logits);
    const float largest = candidates.front().logit;
    const double offset = largest / temperature;
    const double total = std::exp(log_sum_exp(logits, 1.0f / temperature) - offset);
    weigh(candidates, temperature, largest, weights);
    const bool is_wide = num_logits > kNucleusCandidates && sum(weights) / total < row.top_p;
    if (is_wide) {
      const NucleusDraw nucleus{temperature, largest, total, row.top_p, row.min_p, row.uniform};
      return draw_from_wide_nucleus(logits, nucleus, scratch.wide);
    }
    weights.resize(nucleus_size(weights, total, row.top_p));
  }
  apply_min_p(weights, row.min_p);
  return candidates[draw_index(weights, row.uniform)].id;
}

}  // namespace pocket::cpu
