// Passes over one row of vocabulary logits, as sampling needs them (kernels/sampling.h).
//
// Contract: a result depends on the row alone and is reduced in one order. Any thread may call these; only those that
// fill a vector allocate. NaN logits are never chosen and count as impossible (-inf) in sums.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cpu/sampling/kernels.h"
#include "kernels/sampling.h"

namespace pocket::cpu {

// The id of the largest logit, the lowest of equals; 0 when every logit is NaN or -inf.
std::int32_t argmax(std::span<const float> logits) noexcept;

// ln(sum(exp(scale * logit))), scale > 0, within about 1e-6: sums of 1024 in float, their sum in double precision. -inf
// when every logit is -inf, +inf when one is +inf. log_sum_exp(row) of raw logits gives log probabilities: logit - it.
double log_sum_exp(std::span<const float> logits, float scale = 1.0f) noexcept;

// The `count` largest (all, when there are fewer that are not NaN), largest first, lower id first among equals.
void top_logits(std::span<const float> logits, std::int64_t count, std::vector<TokenLogit>& out);

// Every id whose logit is at least `threshold`, by ascending id: the candidates of top-k, top-p and min-p without
// sorting the vocabulary. Never includes NaN. Stops when `max_count` (0: no limit) have been found and there is one
// more: returns false then, with the first max_count in `out`.
bool collect_at_least(std::span<const float> logits, float threshold, std::int64_t max_count,
                      std::vector<TokenLogit>& out);

// Draws from softmax(scale * logits): the first id whose cumulative probability exceeds `uniform`, in [0, 1); cumulated
// by ascending id in double precision. Never an id of probability 0; argmax when the sum is not a positive number.
std::int32_t draw(std::span<const float> logits, float scale, double uniform) noexcept;

// Sets to -inf every logit whose bit is 0 (bit i of word w is id 32 w + i) and every id past the last word.
void mask_disallowed(std::span<const std::uint32_t> words, std::span<float> logits) noexcept;

// In place; `seen` has every id once. First repetition, then frequency, then presence.
void penalize(const Penalties& penalties, std::span<const SeenToken> seen, std::span<float> logits) noexcept;

// logits[id] += bias, in order. Ids outside the row are passed over.
void add_bias(std::span<const std::pair<std::int32_t, float>> bias, std::span<float> logits) noexcept;

// Sets logits[id] = -inf. Ids outside the row are passed over.
void forbid(std::span<const std::int32_t> ids, std::span<float> logits) noexcept;

}  // namespace pocket::cpu
