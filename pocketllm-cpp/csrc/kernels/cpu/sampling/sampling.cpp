#include "kernels/sampling.h"

#include <cstring>

#include "core/buffer.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/sampling/passes.h"
#include "kernels/cpu/sampling/pick.h"

namespace pocket::cpu {
namespace {

std::span<const float> row_of(const LogitRows& logits, std::int64_t row) {
  return {logits.row(row), static_cast<std::size_t>(logits.vocab_size)};
}

std::int32_t sample_row(std::span<const float> logits, const SamplingRow& row) {
  // Kept by the thread: its next row is as long.
  thread_local PickScratch scratch;
  thread_local Buffer memory;
  if (!row.is_adjusted()) return pick(logits, row, scratch);
  float* copy = memory.reserve<float>(logits.size());
  std::memcpy(copy, logits.data(), logits.size_bytes());
  const std::span<float> adjusted{copy, logits.size()};
  if (!row.seen.empty()) penalize(row.penalties, row.seen, adjusted);
  if (!row.bias.empty()) add_bias(row.bias, adjusted);
  if (!row.forbidden.empty()) forbid(row.forbidden, adjusted);
  if (!row.allowed.empty()) mask_disallowed(row.allowed, adjusted);
  return pick(adjusted, row, scratch);
}

std::vector<std::pair<std::int32_t, float>> top_of(std::span<const float> logits, std::int64_t count) {
  std::vector<TokenLogit> found;
  top_logits(logits, count, found);
  std::vector<std::pair<std::int32_t, float>> top;
  top.reserve(found.size());
  for (const TokenLogit& each : found) top.emplace_back(each.id, each.logit);
  return top;
}

TokenLogprob logprob_of(std::span<const float> logits, const LogprobRow& row) {
  const double normalizer = log_sum_exp(logits);
  const auto logprob = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - normalizer); };
  TokenLogprob result;
  result.logprob = logprob(logits[static_cast<std::size_t>(row.token)]);
  if (row.num_top <= 0) return result;
  result.top = top_of(logits, row.num_top);
  for (auto& [id, value] : result.top) value = logprob(value);
  return result;
}

void sample(Context& context, const LogitRows& logits, std::span<const SamplingRow> rows,
            std::span<std::int32_t> tokens) {
  context.threads.run(static_cast<std::int64_t>(rows.size()), [&](std::int64_t index, int) {
    const auto at = static_cast<std::size_t>(index);
    tokens[at] = sample_row(row_of(logits, rows[at].row), rows[at]);
  });
}

void log_probabilities(Context& context, const LogitRows& logits, std::span<const LogprobRow> rows,
                       std::span<TokenLogprob> results) {
  context.threads.run(static_cast<std::int64_t>(rows.size()), [&](std::int64_t index, int) {
    const auto at = static_cast<std::size_t>(index);
    results[at] = logprob_of(row_of(logits, rows[at].row), rows[at]);
  });
}

}  // namespace

void add_sampling(Operations& table) noexcept {
  table.sample = sample;
  table.top_logits = [](Context&, const LogitRows& logits, std::int64_t row, std::int64_t count) {
    return top_of(row_of(logits, row), count);
  };
  table.log_probabilities = log_probabilities;
}

}  // namespace pocket::cpu
