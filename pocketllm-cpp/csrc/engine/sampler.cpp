#include "engine/sampler.h"

#include <algorithm>

#include "engine/random_numbers.h"

namespace pocket {

void Sampler::start(Sequence& sequence) {
  SamplingState& state = sequence.sampling;
  const SamplingParams& params = sequence.group->sampling;
  state.penalized =
      params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f;
  if (!state.penalized) return;
  for (const std::int32_t token : sequence.tokens) {
    const auto index = static_cast<std::int32_t>(state.seen.size());
    if (state.index_of_seen.try_emplace(token, index).second) state.seen.push_back({token, 0});
  }
}

void Sampler::sample(Context& context, const LogitRows& logits, std::span<const SampleRow> rows,
                     std::vector<std::int32_t>& tokens) {
  rows_.clear();
  tokens.resize(rows.size());
  if (masks_.size() < rows.size()) masks_.resize(rows.size());
  for (std::size_t index = 0; index < rows.size(); ++index) {
    Sequence& sequence = *rows[index].sequence;
    std::vector<std::uint32_t>& mask = masks_[index];
    mask.clear();
    if (sequence.sampling.matcher) fill_mask(sequence, mask);
    rows_.push_back(rules_of(rows[index], mask));
  }
  pocket::sample(context, logits, rows_, tokens);
  for (std::size_t index = 0; index < rows.size(); ++index) accept(*rows[index].sequence, tokens[index]);
}

void Sampler::fill_mask(Sequence& sequence, std::vector<std::uint32_t>& words) const {
  SamplingState& state = sequence.sampling;
  words.assign(static_cast<std::size_t>(num_words()), 0);
  if (!state.matcher.fill_mask(words.data(), num_words())) {
    state.error = state.matcher.error();
    if (state.error.empty()) state.error = "The constraint cannot be followed any further.";
    return;
  }
  if (vocab_size_ % 32 != 0) words.back() &= (std::uint32_t{1} << (vocab_size_ % 32)) - 1;
  const bool any = std::any_of(words.begin(), words.end(), [](std::uint32_t word) { return word != 0; });
  if (!any) state.error = "The constraint allows none of the tokens that this model can generate.";
}

SamplingRow Sampler::rules_of(const SampleRow& row, std::span<const std::uint32_t> mask) {
  const Sequence& sequence = *row.sequence;
  const SamplingState& state = sequence.sampling;
  const SamplingParams& params = sequence.group->sampling;
  SamplingRow rules;
  rules.row = row.logit_row;
  if (!state.error.empty()) return rules;
  const std::int64_t num_generated = sequence.num_generated() + row.num_ahead;
  rules.penalties = {params.repetition_penalty, params.frequency_penalty, params.presence_penalty};
  rules.seen = state.seen;
  rules.bias = params.logit_bias;
  // A text that its constraint has completed cannot be made longer.
  const bool complete = state.matcher && state.matcher.is_done();
  if (num_generated < params.min_tokens && !complete) rules.forbidden = sequence.group->stop_ids;
  rules.allowed = mask;
  rules.temperature = params.temperature;
  rules.top_p = params.top_p;
  rules.min_p = params.min_p;
  rules.top_k = params.top_k;
  rules.uniform = uniform(sequence.seed, static_cast<std::uint64_t>(num_generated));
  return rules;
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
