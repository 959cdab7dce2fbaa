// The layer of most families: x += mixer(norm(x)); x += feed_forward(norm(x)).
#pragma once

#include <memory>
#include <utility>

#include "models/layer.h"

namespace pocket {

class PreNormLayer : public Layer {
 public:
  PreNormLayer(Norm input_norm, std::unique_ptr<Mixer> mixer, Norm feed_forward_norm,
               std::unique_ptr<FeedForward> feed_forward)
      : input_norm_(std::move(input_norm)),
        mixer_(std::move(mixer)),
        feed_forward_norm_(std::move(feed_forward_norm)),
        feed_forward_(std::move(feed_forward)) {}

  void run(LayerCall& call, float* x) override;

 private:
  Norm input_norm_;
  std::unique_ptr<Mixer> mixer_;
  Norm feed_forward_norm_;
  std::unique_ptr<FeedForward> feed_forward_;
};

}  // namespace pocket
