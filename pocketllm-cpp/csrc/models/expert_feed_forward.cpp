#include "models/expert_feed_forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/routing.h"

namespace pocket {
namespace {

// How the experts' weights are stored.
enum class Layout {
  kFused,     // one tensor of all gates and ups: [experts, 2 * inner, hidden]
  kStacked,   // one tensor per kind: [experts, inner, hidden]
  kSeparate,  // one tensor per kind and expert
};

Layout layout_of(const WeightReader& weights, const std::string& prefix) {
  if (weights.has(prefix + "experts.gate_up_proj")) return Layout::kFused;
  return weights.format() == FileFormat::kGguf ? Layout::kStacked : Layout::kSeparate;
}

}  // namespace

ExpertFeedForward::ExpertFeedForward(WeightReader& weights, const ModelConfig& config, const std::string& prefix)
    : sizes_(*config.experts),
      hidden_size_(config.hidden_size),
      activation_(config.activation),
      shared_(weights, config, prefix + "shared_expert.", config.experts->shared_intermediate_size) {
  router_ = weights.matrix({{.name = prefix + "gate.weight", .num_rows = sizes_.num_experts},
                            {.name = prefix + "shared_expert_gate.weight", .num_rows = 1}},
                           hidden_size_);
  const Layout layout = layout_of(weights, prefix);
  const std::int64_t inner = sizes_.intermediate_size;
  const double share = static_cast<double>(sizes_.num_selected) / static_cast<double>(sizes_.num_experts);
  experts_.resize(static_cast<std::size_t>(sizes_.num_experts));
  for (std::int64_t index = 0; index < sizes_.num_experts; ++index) {
    const auto rows = [&](const std::string& kind, std::int64_t num_rows) {
      WeightRows part{.name = prefix + "experts.", .num_rows = num_rows};
      if (layout == Layout::kSeparate) {
        part.name += std::to_string(index) + "." + kind + ".weight";
      } else {
        part.name += layout == Layout::kFused ? kind : kind + ".weight";
        part.expert = index;
        part.num_experts = sizes_.num_experts;
      }
      return part;
    };
    Expert& expert = experts_[static_cast<std::size_t>(index)];
    if (layout == Layout::kFused) {
      expert.gate_up = weights.matrix({rows("gate_up_proj", 2 * inner)}, hidden_size_, share);
    } else {
      expert.gate_up = weights.matrix({rows("gate_proj", inner), rows("up_proj", inner)}, hidden_size_, share);
    }
    expert.down = weights.matrix({rows("down_proj", hidden_size_)}, inner, share);
  }
  first_place_.resize(static_cast<std::size_t>(sizes_.num_experts + 1));
  next_place_.resize(static_cast<std::size_t>(sizes_.num_experts));
}

void ExpertFeedForward::run(LayerCall& call, std::int64_t num_rows, const float* x, const ActivationRows& rows,
                            float* y, Store store) {
  const std::int64_t router_rows = router_->num_rows();
  const std::size_t num_choices = static_cast<std::size_t>(num_rows * sizes_.num_selected);
  float* logits = logits_.reserve<float>(static_cast<std::size_t>(num_rows * router_rows));
  multiply(call.context, *router_, rows, nullptr, logits, router_rows, Store::kAssign);
  route(call.context,
        {.num_rows = num_rows, .num_experts = static_cast<std::int32_t>(sizes_.num_experts),
         .num_selected = static_cast<std::int32_t>(sizes_.num_selected), .stride = router_rows, .renormalize = true},
        logits, choices_.reserve<std::int32_t>(num_choices), choice_weights_.reserve<float>(num_choices));
  sort_choices(num_rows);
  run_experts(call, num_rows, x, rows);
  float* shared = shared_output_.reserve<float>(static_cast<std::size_t>(num_rows * hidden_size_));
  shared_.run(call, num_rows, x, rows, shared, Store::kAssign);
  combine(call, num_rows, y, store);
}

void ExpertFeedForward::sort_choices(std::int64_t num_rows) {
  const std::int64_t num_choices = num_rows * sizes_.num_selected;
  const std::int32_t* choices = choices_.as<std::int32_t>();
  std::fill(first_place_.begin(), first_place_.end(), 0);
  for (std::int64_t choice = 0; choice < num_choices; ++choice) {
    ++first_place_[static_cast<std::size_t>(choices[choice]) + 1];
  }
  for (std::size_t expert = 1; expert < first_place_.size(); ++expert) first_place_[expert] += first_place_[expert - 1];
  std::copy(first_place_.begin(), first_place_.end() - 1, next_place_.begin());
  place_of_.resize(static_cast<std::size_t>(num_choices));
  row_at_.resize(static_cast<std::size_t>(num_choices));
  for (std::int64_t choice = 0; choice < num_choices; ++choice) {
    const std::int64_t place = next_place_[static_cast<std::size_t>(choices[choice])]++;
    place_of_[static_cast<std::size_t>(choice)] = place;
    row_at_[static_cast<std::size_t>(place)] = choice / sizes_.num_selected;
  }
}

void ExpertFeedForward::run_experts(LayerCall& call, std::int64_t num_rows, const float* x,
                                    const ActivationRows& rows) {
  const std::int64_t num_choices = num_rows * sizes_.num_selected;
  const std::int64_t inner = sizes_.intermediate_size;
  float* gate = call.work.gate_up.reserve<float>(static_cast<std::size_t>(num_choices * 2 * inner));
  float* activated = call.work.activated.reserve<float>(static_cast<std::size_t>(num_choices * inner));
  float* output = expert_output_.reserve<float>(static_cast<std::size_t>(num_choices * hidden_size_));
  const std::size_t row_bytes = static_cast<std::size_t>(hidden_size_) * sizeof(float);
  // A single row is every expert's input as it is.
  float* gathered = gathered_.reserve<float>(num_rows == 1 ? 0 : static_cast<std::size_t>(num_rows * hidden_size_));
  for (std::size_t index = 0; index < experts_.size(); ++index) {
    const std::int64_t first = first_place_[index];
    const std::int64_t count = first_place_[index + 1] - first;
    if (count == 0) continue;
    const ActivationRows* input = &rows;
    if (num_rows != 1) {
      for (std::int64_t place = 0; place < count; ++place) {
        const float* row = x + row_at_[static_cast<std::size_t>(first + place)] * hidden_size_;
        std::memcpy(gathered + place * hidden_size_, row, row_bytes);
      }
      gathered_rows_.assign(call.context, gathered, count, hidden_size_, hidden_size_, call.activation);
      input = &gathered_rows_;
    }
    multiply(call.context, *experts_[index].gate_up, *input, nullptr, gate + first * 2 * inner, 2 * inner,
             Store::kAssign);
  }
  gated(call.context, activation_, num_choices, inner, gate, gate + inner, 2 * inner, activated, inner);
  for (std::size_t index = 0; index < experts_.size(); ++index) {
    const std::int64_t first = first_place_[index];
    const std::int64_t count = first_place_[index + 1] - first;
    if (count == 0) continue;
    activated_rows_.assign(call.context, activated + first * inner, count, inner, inner, call.activation);
    multiply(call.context, *experts_[index].down, activated_rows_, nullptr, output + first * hidden_size_, hidden_size_,
             Store::kAssign);
  }
}

void ExpertFeedForward::combine(LayerCall& call, std::int64_t num_rows, float* y, Store store) {
  const float* weights = choice_weights_.as<float>();
  float* output = expert_output_.as<float>();
  const auto combine_row = [&](std::int64_t row, int) {
    const std::size_t first = static_cast<std::size_t>(row * sizes_.num_selected);
    const auto output_of = [&](std::int64_t slot) {
      return output + place_of_[first + static_cast<std::size_t>(slot)] * hidden_size_;
    };
    // The first choice's own output row takes the sum, which is complete before it joins what y holds.
    float* sum = output_of(0);
    for (std::int64_t column = 0; column < hidden_size_; ++column) sum[column] *= weights[first];
    for (std::int64_t slot = 1; slot < sizes_.num_selected; ++slot) {
      const float weight = weights[first + static_cast<std::size_t>(slot)];
      const float* other = output_of(slot);
      for (std::int64_t column = 0; column < hidden_size_; ++column) sum[column] += weight * other[column];
    }
    const float* shared = shared_output_.as<float>() + row * hidden_size_;
    const float logit = logits_.as<float>()[row * router_->num_rows() + sizes_.num_experts];
    const float gate = 1.0f / (1.0f + std::exp(-logit));
    float* out = y + row * hidden_size_;
    for (std::int64_t column = 0; column < hidden_size_; ++column) {
      const float value = sum[column] + gate * shared[column];
      out[column] = store == Store::kAdd ? out[column] + value : value;
    }
  };
  call.context.threads.run(num_rows, combine_row);
}

}  // namespace pocket
