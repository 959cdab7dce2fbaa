// A decoder-only model of any family: embedding, layers, final norm, head.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "models/config.h"
#include "models/embedding.h"
#include "models/layer.h"
#include "models/model.h"
#include "models/rope.h"
#include "models/weights.h"

namespace pocket {

// What load_model was asked for, with the configuration read.
struct LoadRequest {
  Context& context;
  ModelConfig config;
  const TensorSource& source;
  const ModelOptions& options;
  const Progress& progress;

  // How many layers before `layer` have a recurrent state (linear), or a key-value cache: its index among its kind.
  std::int32_t num_layers_before(std::int64_t layer, bool linear) const;
};

class Decoder : public Model {
 public:
  using MakeLayer = std::function<std::unique_ptr<Layer>(std::int64_t index)>;

  // Loads the embedding, every layer by `make_layer`, the final norm and the head, and refuses leftover tensors.
  // `angles`: those that the layers refer to.
  Decoder(const LoadRequest& request, WeightReader& weights, float embedding_scale,
          std::vector<std::unique_ptr<RotaryAngles>> angles, const MakeLayer& make_layer);

  const ModelShape& shape() const noexcept override { return shape_; }
  void forward(Context& context, const Step& step, Caches& caches, float* logits) override;

 private:
  void check(const Step& step, std::int64_t block_size) const;
  // The logit rows as sequences of their own, whose first rows count logit rows.
  void plan_kept_sequences(const Step& step);

  Activation activation_;
  ModelShape shape_;
  std::vector<std::unique_ptr<RotaryAngles>> angles_;
  Embedding embedding_;
  std::vector<std::unique_ptr<Layer>> layers_;
  Norm final_norm_;
  std::unique_ptr<const Matrix> head_;
  Workspace work_;

  // Of a step: its sequences and the kept ones as the device has them, and the kept rows.
  SequenceTable sequences_, kept_table_;
  std::vector<SequenceRows> kept_sequences_;
  DeviceBuffer kept_rows_;
};

}  // namespace pocket
