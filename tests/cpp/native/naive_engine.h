// What an answer must be, computed the plain way: one sequence, no scheduler, the vocabulary sorted in full.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "engine/random_numbers.h"
#include "engine/request.h"
#include "engine/runtime.h"

namespace naive {

// Unnormalised weights of ids in the order they are drawn in.
struct Weights {
  std::vector<std::int32_t> ids;
  std::vector<double> weights;
};

inline Weights kept(const std::vector<float>& logits, const pocket::SamplingParams& params) {
  Weights all;
  all.ids.resize(logits.size());
  std::iota(all.ids.begin(), all.ids.end(), 0);
  const float largest = *std::max_element(logits.begin(), logits.end());
  const auto weight = [&](std::int32_t id) {
    return std::exp(static_cast<double>(logits[id] / params.temperature) - largest / params.temperature);
  };
  const bool top_k = params.top_k > 0 && params.top_k < static_cast<std::int32_t>(logits.size());
  if (top_k || params.top_p < 1.0f) {
    std::stable_sort(all.ids.begin(), all.ids.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  }
  if (top_k) all.ids.resize(static_cast<std::size_t>(params.top_k));
  for (const std::int32_t id : all.ids) all.weights.push_back(weight(id));
  if (params.top_p < 1.0f) {
    const double total = std::accumulate(all.weights.begin(), all.weights.end(), 0.0);
    double before = 0.0;
    std::size_t count = 0;
    while (count < all.ids.size() && before / total < params.top_p) before += all.weights[count++];
    all.ids.resize(count);
    all.weights.resize(count);
  }
  const double least = params.min_p * *std::max_element(all.weights.begin(), all.weights.end());
  for (double& each : all.weights) {
    if (each < least) each = 0.0;
  }
  return all;
}

inline std::int32_t pick(const std::vector<float>& logits, const pocket::SamplingParams& params, double number) {
  if (params.temperature <= 1e-5f) {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  const Weights all = kept(logits, params);
  const double target = number * std::accumulate(all.weights.begin(), all.weights.end(), 0.0);
  double cumulative = 0.0;
  std::int32_t last = all.ids.front();
  for (std::size_t index = 0; index < all.ids.size(); ++index) {
    if (all.weights[index] <= 0.0) continue;
    last = all.ids[index];
    cumulative += all.weights[index];
    if (cumulative > target) break;
  }
  return last;
}

struct Answer {
  std::vector<std::int32_t> tokens;
  pocket::FinishReason reason = pocket::FinishReason::kLength;
};

// The answer to one choice of a request without a matcher; `runtime` must be idle.
inline Answer answer(pocket::Runtime& runtime, const pocket::Request& request, std::uint64_t seed) {
  const pocket::SamplingParams& params = request.sampling;
  const auto vocab = static_cast<std::size_t>(runtime.model().shape().vocab_size);
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(runtime.kv().shape().num_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  if (runtime.states() != nullptr) runtime.states()->clear(runtime.context(), 0);
  std::vector<float> logits(vocab);
  pocket::DeviceBuffer computed(runtime.context().device, vocab * sizeof(float));
  std::int64_t position = 0;
  const auto compute = [&](std::span<const std::int32_t> tokens, bool chunked) {
    const auto num_rows = static_cast<std::int32_t>(tokens.size());
    const pocket::SequenceRows rows{0, num_rows, position, blocks, 0, chunked};
    const std::int32_t last = num_rows - 1;
    pocket::Caches caches = runtime.caches();
    runtime.model().forward(runtime.context(), {tokens, {&rows, 1}, {&last, 1}}, caches, computed.as<float>());
    pocket::copy_to_host(runtime.context(), std::as_const(computed).as<float>(), std::span(logits));
    position += num_rows;
  };
  compute(request.prompt, true);
  Answer result;
  std::map<std::int32_t, int> counts;
  std::set<std::int32_t> seen(request.prompt.begin(), request.prompt.end());
  for (;;) {
    std::vector<float> row = logits;
    if (params.repetition_penalty != 1.0f) {
      for (const std::int32_t id : seen) {
        row[id] = row[id] > 0 ? row[id] / params.repetition_penalty : row[id] * params.repetition_penalty;
      }
    }
    for (const auto& [id, count] : counts) {
      row[id] -= static_cast<float>(count) * params.frequency_penalty;
      row[id] -= params.presence_penalty;
    }
    for (const auto& [id, bias] : params.logit_bias) row[id] += bias;
    if (static_cast<std::int64_t>(result.tokens.size()) < params.min_tokens) {
      for (const std::int32_t id : request.stop_ids) row[id] = -std::numeric_limits<float>::infinity();
    }
    const std::int32_t token = pick(row, params, pocket::uniform(seed, result.tokens.size()));
    result.tokens.push_back(token);
    ++counts[token];
    seen.insert(token);
    if (std::find(request.stop_ids.begin(), request.stop_ids.end(), token) != request.stop_ids.end()) {
      result.reason = pocket::FinishReason::kStop;
      return result;
    }
    if (static_cast<std::int64_t>(result.tokens.size()) >= params.max_tokens) return result;
    compute({&token, 1}, false);
  }
}

}  // namespace naive
