#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "engine/random_numbers.h"

namespace pocket {
namespace {

constexpr float kGreedyTemperature = 1e-5f;
// Candidates looked at first for top_p, which seldom needs more.
constexpr std::int64_t kNucleusCandidates = 256;
// Logits this much below min_p's border (in units of the scaled logit) are candidates whose weight decides exactly.
constexpr float kBorderSlack = 1e-3f;

bool is_greedy(const SamplingParams& params) noexcept { return params.temperature <= kGreedyTemperature; }

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

std::int32_t pick(std::span<const float> logits, const SamplingParams& params, double number, PickScratch& scratch) {
  if (is_greedy(params)) return argmax(logits);
  const auto num_logits = static_cast<std::int64_t>(logits.size());
  const bool has_top_k = params.top_k > 0 && params.top_k < num_logits;
  const bool has_top_p = params.top_p < 1.0f;
  const float temperature = params.temperature;
  auto& candidates = scratch.candidates;
  auto& weights = scratch.weights;
  if (!has_top_k && !has_top_p) {
    if (params.min_p <= 0.0f) return draw(logits, 1.0f / temperature, number);
    const float largest = logits[static_cast<std::size_t>(argmax(logits))];
    const float border = largest + temperature * (std::log(params.min_p) - kBorderSlack);
    collect_at_least(logits, border, 0, candidates);
    if (!has_finite_front(candidates)) return argmax(logits);
    weigh(candidates, temperature, largest, weights);
    apply_min_p(weights, params.min_p);
    return candidates[draw_index(weights, number)].id;
  }
  if (has_top_k) {
    top_logits(logits, params.top_k, candidates);
    if (!has_finite_front(candidates)) return argmax(logits);
    weigh(candidates, temperature, candidates.front().logit, weights);
    if (has_top_p) weights.resize(nucleus_size(weights, sum(weights), params.top_p));
  } else {
    top_logits(logits, kNucleusCandidates, candidates);
    if (!has_finite_front(candidates)) return argmax(logits);
    const float largest = candidates.front().logit;
    const double offset = largest / temperature;
    const double total = std::exp(log_sum_exp(logits, 1.0f / temperature) - offset);
    weigh(candidates, temperature, largest, weights);
    const bool is_wide = num_logits > kNucleusCandidates && sum(weights) / total < params.top_p;
    if (is_wide) {
      const NucleusDraw nucleus{temperature, largest, total, params.top_p, params.min_p, number};
      return draw_from_wide_nucleus(logits, nucleus, scratch.wide);
    }
    weights.resize(nucleus_size(weights, total, params.top_p));
  }
  apply_min_p(weights, params.min_p);
  return candidates[draw_index(weights, number)].id;
}

void Sampler::start(Sequence& sequence) {
  SamplingState& state = sequence.sampling;
  const SamplingParams& params = sequence.group->sampling;
  state.penalized =
      params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f;
  state.plain = !state.penalized && params.logit_bias.empty() && params.min_tokens <= 0 && !state.matcher;
  if (!state.penalized) return;
  for (const std::int32_t token : sequence.tokens) {
    const auto index = static_cast<std::int32_t>(state.seen.size());
    if (state.index_of_seen.try_emplace(token, index).second) state.seen.push_back({token, 0});
  }
}

void Sampler::sample(Context& context, std::span<const SampleRow> rows, std::vector<std::int32_t>& tokens) {
  tokens.resize(rows.size());
  if (masks_.size() < rows.size()) masks_.resize(rows.size());
  is_complete_.resize(rows.size());
  scratch_.resize(static_cast<std::size_t>(context.threads.num_threads()));
  // Matchers are called on this thread alone.
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows[row].sequence->sampling.matcher) fill_mask(*rows[row].sequence, row);
  }
  context.threads.run(static_cast<std::int64_t>(rows.size()), [&](std::int64_t index, int thread) {
    const auto row = static_cast<std::size_t>(index);
    tokens[row] = choose(rows[row], row, scratch_[static_cast<std::size_t>(thread)]);
  });
  for (std::size_t row = 0; row < rows.size(); ++row) accept(*rows[row].sequence, tokens[row]);
}

void Sampler::fill_mask(Sequence& sequence, std::size_t row) {
  SamplingState& state = sequence.sampling;
  std::vector<std::uint32_t>& words = masks_[row];
  words.assign(static_cast<std::size_t>(num_words()), 0);
  is_complete_[row] = state.matcher.is_done();
  if (!state.matcher.fill_mask(words.data(), num_words())) {
    state.error = state.matcher.error();
    if (state.error.empty()) state.error = "The constraint cannot be followed any further.";
    return;
  }
  if (vocab_size_ % 32 != 0) words.back() &= (std::uint32_t{1} << (vocab_size_ % 32)) - 1;
  const bool any = std::any_of(words.begin(), words.end(), [](std::uint32_t word) { return word != 0; });
  if (!any) state.error = "The constraint allows none of the tokens that this model can generate.";
}

std::int32_t Sampler::choose(const SampleRow& row, std::size_t index, PickScratch& scratch) const {
  const Sequence& sequence = *row.sequence;
  const SamplingState& state = sequence.sampling;
  const SamplingParams& params = sequence.group->sampling;
  if (!state.error.empty()) return 0;
  const auto num_generated = static_cast<std::uint64_t>(sequence.num_generated());
  const auto size = static_cast<std::size_t>(vocab_size_);
  std::span<const float> logits{row.logits, size};
  if (!state.plain) {
    // The raw row is still needed for log probabilities, and by other choices that sample from it.
    float* copy = scratch.row.reserve<float>(size);
    std::memcpy(copy, row.logits, size * sizeof(float));
    const std::span<float> adjusted{copy, size};
    if (state.penalized) {
      penalize({params.repetition_penalty, params.frequency_penalty, params.presence_penalty}, state.seen, adjusted);
    }
    if (!params.logit_bias.empty()) add_bias(params.logit_bias, adjusted);
    // A text that its constraint has completed cannot be made longer.
    const bool complete = state.matcher && is_complete_[index] != 0;
    if (sequence.num_generated() < params.min_tokens && !complete) forbid(sequence.group->stop_ids, adjusted);
    if (state.matcher) mask_disallowed(masks_[index], adjusted);
    logits = adjusted;
  }
  return pick(logits, params, is_greedy(params) ? 0.0 : uniform(sequence.seed, num_generated), scratch);
}

void Sampler::accept(Sequence& sequence, std::int32_t token) {
  SamplingState& state = sequence.sampling;
  if (!state.error.empty()) return;
  if (state.penalized) {
    const auto [place, is_new] = state.index_of_seen.try_emplace(token, static_cast<std::int32_t>(state.seen.size()));
    if (is_new) state.seen.push_back({token, 0});
    ++state.seen[static_cast<std::size_t>(place->second)].num_generated;
  }
  if (state.matcher && !state.matcher.accept(token)) {
    state.error = "Token " + std::to_string(token) + " was sampled, which the constraint does not allow.";
  }
}

}  // namespace pocket
