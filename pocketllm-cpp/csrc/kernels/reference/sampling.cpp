#include "kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/reference/memory.h"
#include "kernels/reference/operations.h"

namespace pocket::reference {
namespace {

std::vector<float> content_of(const LogitRows& logits, std::int64_t row) {
  const float* content = reach(logits.row(row), logits.vocab_size);
  return {content, content + logits.vocab_size};
}

void adjust(const SamplingRow& row, std::vector<float>& logits) {
  const auto in_row = [&](std::int32_t id) { return id >= 0 && id < std::ssize(logits); };
  const auto at = [&](std::int32_t id) -> float& { return logits[static_cast<std::size_t>(id)]; };
  for (const SeenToken& token : row.seen) {
    if (!in_row(token.id)) continue;
    const float repetition = row.penalties.repetition;
    at(token.id) = at(token.id) > 0.0f ? at(token.id) / repetition : at(token.id) * repetition;
    if (token.num_generated <= 0) continue;
    at(token.id) -= static_cast<float>(token.num_generated) * row.penalties.frequency;
    at(token.id) -= row.penalties.presence;
  }
  for (const auto& [id, bias] : row.bias) {
    if (in_row(id)) at(id) += bias;
  }
  for (const std::int32_t id : row.forbidden) {
    if (in_row(id)) at(id) = -INFINITY;
  }
  if (row.allowed.empty()) return;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const bool is_allowed = id / 32 < row.allowed.size() && (row.allowed[id / 32] >> (id % 32) & 1u) != 0;
    if (!is_allowed) logits[id] = -INFINITY;
  }
}

// Ids of logits that are numbers, largest first, the lower id first among equals.
std::vector<std::int32_t> sorted_ids(const std::vector<float>& logits) {
  std::vector<std::int32_t> ids;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (!std::isnan(logits[id])) ids.push_back(static_cast<std::int32_t>(id));
  }
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
  return ids;
}

// Sorts everything, then applies the rules one after another.
std::int32_t pick(const std::vector<float>& logits, const SamplingRow& row) {
  std::vector<std::int32_t> ids = sorted_ids(logits);
  if (ids.empty()) return 0;
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  const float largest = logit(ids.front());
  if (row.is_greedy() || !std::isfinite(largest)) return ids.front();
  const bool has_top_k = row.top_k > 0 && row.top_k < std::ssize(logits);
  const bool has_top_p = row.top_p < 1.0f;
  if (!has_top_k && !has_top_p) std::sort(ids.begin(), ids.end());
  if (has_top_k && row.top_k < std::ssize(ids)) ids.resize(static_cast<std::size_t>(row.top_k));
  // Divided in single precision, the rest in double, as every backend does, so that all choose the same token.
  std::vector<double> weights;
  for (const std::int32_t id : ids) {
    const double scaled = logit(id) / row.temperature;
    weights.push_back(std::exp(scaled - double{largest / row.temperature}));
  }
  if (has_top_p) {
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    double before = 0.0;
    std::size_t count = 0;
    while (count < weights.size() && before / total < double{row.top_p}) before += weights[count++];
    weights.resize(count);
  }
  // The largest weight is 1.
  for (double& weight : weights) {
    if (weight < double{row.min_p}) weight = 0.0;
  }
  const double target = row.uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  double cumulative = 0.0;
  std::int32_t last = ids.front();
  for (std::size_t index = 0; index < weights.size(); ++index) {
    if (weights[index] <= 0.0) continue;
    last = ids[index];
    cumulative += weights[index];
    if (cumulative > target) break;
  }
  return last;
}

void sample(Context&, const LogitRows& logits, std::span<const SamplingRow> rows, std::span<std::int32_t> tokens) {
  for (std::size_t index = 0; index < rows.size(); ++index) {
    std::vector<float> adjusted = content_of(logits, rows[index].row);
    adjust(rows[index], adjusted);
    tokens[index] = pick(adjusted, rows[index]);
  }
}

// ln(sum(exp(logits))).
double log_sum_exp(const std::vector<float>& logits, double largest) {
  if (std::isinf(largest)) return largest;
  double sum = 0.0;
  for (const float logit : logits) {
    if (!std::isnan(logit)) sum += std::exp(logit - largest);
  }
  return largest + std::log(sum);
}

std::span<const std::int32_t> first_of(const std::vector<std::int32_t>& ids, std::int64_t count) {
  return {ids.data(), static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, std::ssize(ids)))};
}

std::vector<std::pair<std::int32_t, float>> top_logits(Context&, const LogitRows& logits, std::int64_t row,
                                                       std::int64_t count) {
  const std::vector<float> content = content_of(logits, row);
  const std::vector<std::int32_t> ids = sorted_ids(content);
  std::vector<std::pair<std::int32_t, float>> top;
  for (const std::int32_t id : first_of(ids, count)) top.emplace_back(id, content[static_cast<std::size_t>(id)]);
  return top;
}

void log_probabilities(Context&, const LogitRows& logits, std::span<const LogprobRow> rows,
                       std::span<TokenLogprob> results) {
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const LogprobRow& row = rows[index];
    const std::vector<float> content = content_of(logits, row.row);
    const std::vector<std::int32_t> ids = sorted_ids(content);
    const auto logit = [&](std::int32_t id) { return content[static_cast<std::size_t>(id)]; };
    const double normalizer = log_sum_exp(content, ids.empty() ? -INFINITY : logit(ids.front()));
    const auto logprob = [&](std::int32_t id) { return static_cast<float>(logit(id) - normalizer); };
    results[index].logprob = logprob(row.token);
    results[index].top.clear();
    for (const std::int32_t id : first_of(ids, row.num_top)) results[index].top.emplace_back(id, logprob(id));
  }
}

}  // namespace

void add_sampling(Operations& table) noexcept {
  table.sample = sample;
  table.top_logits = top_logits;
  table.log_probabilities = log_probabilities;
}

}  // namespace pocket::reference
