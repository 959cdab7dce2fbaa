#include "models/expert_feed_forward.h"

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
    if (layout == Layout::kFused) {
      gate_up_.push_back(weights.matrix({rows("gate_up_proj", 2 * inner)}, hidden_size_, share));
    } else {
      gate_up_.push_back(
          weights.matrix({rows("gate_proj", inner), rows("up_proj", inner)}, hidden_size_, share));
    }
    down_.push_back(weights.matrix({rows("down_proj", hidden_size_)}, inner, share));
  }
}

void ExpertFeedForward::run(LayerCall& call, std::int64_t num_rows, const float* x, const ActivationRows& rows,
                            float* y, Store store) {
  Context& context = call.context;
  const std::int64_t router_rows = router_->num_rows();
  const std::int64_t inner = sizes_.intermediate_size;
  const std::int64_t num_places = num_rows * sizes_.num_selected;
  float* logits = call.room(logits_, num_rows * router_rows);
  multiply(context, *router_, rows, nullptr, logits, router_rows, Store::kAssign);
  const RoutingShape routing{.num_rows = num_rows,
                             .num_experts = static_cast<std::int32_t>(sizes_.num_experts),
                             .num_selected = static_cast<std::int32_t>(sizes_.num_selected),
                             .stride = router_rows,
                             .renormalize = true};
  std::int32_t* selected = selected_.reserve<std::int32_t>(context.device, static_cast<std::size_t>(num_places));
  float* selected_weights = call.room(selected_weights_, num_places);
  route(context, routing, logits, selected, selected_weights);
  order_.assign(context, routing, selected);

  float* gate = call.room(call.work.gate_up, num_places * 2 * inner);
  float* activated = call.room(call.work.activated, num_places * inner);
  float* outputs = call.room(outputs_, num_places * hidden_size_);
  multiply_selected(context, gate_up_, order_, x, rows, call.activation, gate);
  gated(context, activation_, num_places, inner, gate, gate + inner, 2 * inner, activated, inner);
  multiply_places(context, down_, order_, activated, call.activation, outputs);

  float* shared = call.room(shared_output_, num_rows * hidden_size_);
  shared_.run(call, num_rows, x, rows, shared, Store::kAssign);
  combine_experts(context, order_, selected_weights, outputs,
                  {.output = shared, .gate = logits + sizes_.num_experts, .gate_stride = router_rows}, hidden_size_, y,
                  store);
}

}  // namespace pocket
