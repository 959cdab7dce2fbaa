// A mixture of experts with one shared expert:
//   y = sum over the chosen experts e of w_e expert_e(x), + sigmoid(gate x) shared(x)
// A row's sum runs over its choices in the router's order and then the shared expert, whatever rows share the step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/elementwise.h"
#include "models/config.h"
#include "models/feed_forward.h"
#include "models/layer.h"
#include "models/weights.h"

namespace pocket {

class ExpertFeedForward : public FeedForward {
 public:
  // `prefix`: of gate, experts and shared_expert, as in "model.layers.3.mlp.".
  ExpertFeedForward(WeightReader& weights, const ModelConfig& config, const std::string& prefix);

  void run(LayerCall& call, std::int64_t num_rows, const float* x, const ActivationRows& rows, float* y,
           Store store) override;

 private:
  struct Expert {
    std::unique_ptr<const Matrix> gate_up;
    std::unique_ptr<const Matrix> down;
  };

  // Lists every (row, choice) by expert: order_[place] and its inverse place_of_.
  void sort_choices(std::int64_t num_rows);
  void run_experts(LayerCall& call, std::int64_t num_rows, const float* x, const ActivationRows& rows);
  void combine(LayerCall& call, std::int64_t num_rows, float* y, Store store);

  ExpertSizes sizes_;
  std::int64_t hidden_size_;
  Gate activation_;
  std::unique_ptr<const Matrix> router_;  // rows: one per expert, then the shared expert's gate
  std::vector<Expert> experts_;
  DenseFeedForward shared_;

  // Scratch of a call. A place is a position in the list of all choices, sorted by expert.
  Buffer logits_, choices_, choice_weights_, gathered_, expert_output_, shared_output_;
  std::vector<std::int64_t> first_place_;     // [num_experts + 1]
  std::vector<std::int64_t> next_place_;      // [num_experts]
  std::vector<std::int64_t> place_of_;        // [num_rows * num_selected]
  std::vector<std::int64_t> row_at_;          // [num_rows * num_selected], by place
  ActivationRows gathered_rows_, activated_rows_;
};

}  // namespace pocket
