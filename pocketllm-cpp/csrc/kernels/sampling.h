// From rows of vocabulary logits to tokens and log probabilities.
//
// Contract: a row's result depends on that row and its settings alone, and is reduced in one order. NaN logits are
// never chosen and count as impossible (-inf) in sums. Logits are left as they are.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/context.h"

namespace pocket {

// Raw logits in device memory, rows `stride` floats apart. Ids from vocab_size on are padding, and are never generated.
struct LogitRows {
  const float* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t vocab_size = 0;

  const float* row(std::int64_t index) const noexcept { return data + index * stride; }
};

struct Penalties {
  float repetition = 1.0f;  // positive logits are divided, others multiplied, once per seen token
  float frequency = 0.0f;   // subtracted per occurrence in the answer
  float presence = 0.0f;    // subtracted once if the answer has it
};

struct SeenToken {
  std::int32_t id = 0;
  std::int32_t num_generated = 0;  // occurrences in the answer; 0: only the prompt has it
};

// One token to draw. Spans are host memory, and are read during the call alone. Ids outside the vocabulary are passed
// over.
//
// Adjustments first, in this order: repetition, frequency and presence penalty; bias; forbidden ids; the mask. A greedy
// row then takes the largest logit (the lowest id of equals). Otherwise the logits are divided by the temperature, and
// what is kept shrinks by top_k, then top_p (of the probability that top_k left, the token that crosses it included),
// then min_p (relative to the most probable token); `uniform` picks among the rest: by ascending id, or from the most
// probable on when top_k or top_p is in use.
struct SamplingRow {
  std::int64_t row = 0;  // of the logits; several may have one
  Penalties penalties;
  std::span<const SeenToken> seen;  // for the penalties; every id once
  std::span<const std::pair<std::int32_t, float>> bias;  // added, in order
  std::span<const std::int32_t> forbidden;
  // Bit i of word w is 1 when id 32 w + i may come; ids past the last word may not. Empty: no mask.
  std::span<const std::uint32_t> allowed;
  float temperature = 0.0f;  // at most kGreedyTemperature: greedy
  float top_p = 1.0f;
  float min_p = 0.0f;
  std::int32_t top_k = 0;  // 0: no limit
  double uniform = 0.0;    // in [0, 1)

  static constexpr float kGreedyTemperature = 1e-5f;
  bool is_greedy() const noexcept { return temperature <= kGreedyTemperature; }
  bool is_adjusted() const noexcept {
    return !seen.empty() || !bias.empty() || !forbidden.empty() || !allowed.empty();
  }
};

// tokens[i], in host memory, for rows[i]. Some id of the vocabulary when a row has no number that is finite.
void sample(Context& context, const LogitRows& logits, std::span<const SamplingRow> rows,
            std::span<std::int32_t> tokens);

// The `count` largest logits of a row (all, when there are fewer that are not NaN), largest first, lower id first among
// equals.
std::vector<std::pair<std::int32_t, float>> top_logits(Context& context, const LogitRows& logits, std::int64_t row,
                                                       std::int64_t count);

// One token whose log probability is wanted, and how many of the most probable ones beside it.
struct LogprobRow {
  std::int64_t row = 0;  // of the logits
  std::int32_t token = 0;
  std::int32_t num_top = 0;
};

struct TokenLogprob {
  float logprob = 0.0f;
  std::vector<std::pair<std::int32_t, float>> top;  // best first, equal ones by lower id; NaN left out
};

// results[i], in host memory, for rows[i]: of the raw logits, over the whole vocabulary.
void log_probabilities(Context& context, const LogitRows& logits, std::span<const LogprobRow> rows,
                       std::span<TokenLogprob> results);

}  // namespace pocket
