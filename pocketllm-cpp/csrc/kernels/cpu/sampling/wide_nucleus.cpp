#include "kernels/cpu/sampling/wide_nucleus.h"

#include <algorithm>
#include <cmath>

namespace pocket::cpu {
namespace {

// Tokens fall into buckets by their logits, so that whole buckets are summed and one or two are sorted.
constexpr std::int32_t kNumBuckets = 1024;
// In units of the scaled logit: covers the rounding of the border of what is collected.
constexpr double kBorderSlack = 1e-3;

class Buckets {
 public:
  Buckets(std::span<const float> logits, const NucleusDraw& draw, WideNucleusScratch& scratch)
      : draw_(draw), scratch_(scratch) {
    // Even all tokens below this weight together would not reach into the nucleus.
    const double outside = (1.0 - draw.top_p) * draw.total / static_cast<double>(logits.size());
    const double depth = kBorderSlack - std::log(std::clamp(std::max(outside, draw.min_p), 1e-300, 1.0));
    const float border = draw.largest - static_cast<float>(draw.temperature * depth);
    collect_at_least(logits, border, 0, scratch.candidates);
    scratch.weights.clear();
    scratch.buckets.clear();
    scratch.masses.assign(kNumBuckets, 0.0);
    const double largest = draw.largest / draw.temperature;
    for (const TokenLogit& each : scratch.candidates) {
      const double below = largest - static_cast<double>(each.logit / draw.temperature);
      const double weight = std::exp(-below);
      const auto bucket = static_cast<std::int32_t>(std::clamp(below / depth, 0.0, 1.0) * (kNumBuckets - 1));
      const bool is_kept = weight >= draw.min_p;
      scratch.weights.push_back(is_kept ? weight : 0.0);
      scratch.buckets.push_back(bucket);
      if (is_kept) scratch.masses[static_cast<std::size_t>(bucket)] += weight;
    }
  }

  // The sum of the weights before `bucket`.
  double mass_before(std::int32_t bucket) const noexcept {
    double before = 0.0;
    for (std::int32_t index = 0; index < bucket; ++index) before += scratch_.masses[static_cast<std::size_t>(index)];
    return before;
  }

  // The first bucket by whose end the cumulative weight reaches `mass`; the last that has any when none does.
  std::int32_t bucket_reaching(double mass) const noexcept {
    std::int32_t last = 0;
    double cumulative = 0.0;
    for (std::int32_t index = 0; index < kNumBuckets; ++index) {
      if (scratch_.masses[static_cast<std::size_t>(index)] <= 0.0) continue;
      cumulative += scratch_.masses[static_cast<std::size_t>(index)];
      last = index;
      if (cumulative >= mass) break;
    }
    return last;
  }

  // The bucket's candidates with a weight, most probable first, lower id first among equals.
  const std::vector<std::int32_t>& sorted(std::int32_t bucket) {
    std::vector<std::int32_t>& members = scratch_.members;
    members.clear();
    for (std::size_t index = 0; index < scratch_.buckets.size(); ++index) {
      if (scratch_.buckets[index] == bucket && scratch_.weights[index] > 0.0) {
        members.push_back(static_cast<std::int32_t>(index));
      }
    }
    const auto comes_before = [this](std::int32_t a, std::int32_t b) {
      const float left = candidate(a).logit, right = candidate(b).logit;
      return left != right ? left > right : a < b;
    };
    if (!std::is_sorted(members.begin(), members.end(), comes_before)) {
      std::sort(members.begin(), members.end(), comes_before);
    }
    return members;
  }

  const TokenLogit& candidate(std::int32_t index) const noexcept {
    return scratch_.candidates[static_cast<std::size_t>(index)];
  }
  double weight(std::int32_t index) const noexcept { return scratch_.weights[static_cast<std::size_t>(index)]; }

 private:
  const NucleusDraw& draw_;
  WideNucleusScratch& scratch_;
};

}  // namespace

std::int32_t draw_from_wide_nucleus(std::span<const float> logits, const NucleusDraw& draw,
                                    WideNucleusScratch& scratch) {
  Buckets buckets(logits, draw, scratch);
  if (scratch.candidates.empty()) return argmax(logits);
  const std::int32_t border = buckets.bucket_reaching(draw.top_p * draw.total);
  double kept = buckets.mass_before(border);
  std::size_t num_kept = 0;  // of the border's bucket
  for (const std::int32_t index : buckets.sorted(border)) {
    if (kept / draw.total >= draw.top_p) break;
    kept += buckets.weight(index);
    ++num_kept;
  }
  const double target = kept * draw.number;
  // Rounding must not lead past what is kept: the search ends with the border.
  for (std::int32_t bucket = std::min(border, buckets.bucket_reaching(target)); bucket <= border; ++bucket) {
    double cumulative = buckets.mass_before(bucket);
    const std::vector<std::int32_t>& members = buckets.sorted(bucket);
    const std::size_t num_members = bucket == border ? num_kept : members.size();
    for (std::size_t index = 0; index < num_members; ++index) {
      cumulative += buckets.weight(members[index]);
      const bool is_last = bucket == border && index + 1 == num_members;
      if (cumulative > target || is_last) return buckets.candidate(members[index]).id;
    }
  }
  return argmax(logits);
}

}  // namespace pocket::cpu
