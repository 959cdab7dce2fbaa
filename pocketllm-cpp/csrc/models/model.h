// A loaded model: what the engine knows of any family.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor_source.h"
#include "kernels/attention.h"
#include "kernels/context.h"
#include "kernels/linear.h"
#include "kernels/recurrent_states.h"
#include "kernels/sequence_rows.h"
#include "models/cache_spec.h"

namespace pocket {

// The rows one forward pass computes.
struct Step {
  std::span<const std::int32_t> tokens;           // one per row
  std::span<const SequenceRows> sequences;        // cover all rows, in order
  std::span<const std::int32_t> logit_rows;       // rows whose logits are wanted, ascending
};

// What a model's sequences keep between steps; made for a model by the engine.
struct Caches {
  KvCache& kv;
  RecurrentStates* states = nullptr;  // only for models with recurrent layers
};

// Sizes the engine plans with.
struct ModelShape {
  std::string model_type;  // as in config.json
  std::int64_t vocab_size = 0;  // rows of the head, padding included
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t max_positions = 0;
  std::vector<CacheSpec> caches;  // [num_layers]
  std::size_t weights_bytes = 0;  // as packed
  std::size_t bytes_per_token = 0;  // weight bytes that computing one token reads
};

// Threads: forward() by one thread at a time.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelShape& shape() const noexcept = 0;
  // Computes all rows, appends to the caches, and writes logits [logit_rows.size(), vocab_size], raw, to device memory.
  virtual void forward(Context& context, const Step& step, Caches& caches, float* logits) = 0;
};

struct ModelOptions {
  Activation activation = Activation::kInt8;
  std::int64_t max_positions = 0;  // 0: the checkpoint's; rotary angles are prepared up to it
  std::int64_t num_layers = 0;     // 0: all; fewer for tests and measurements
};

using Progress = std::function<void(double fraction)>;

// True when this build has the family (a config.json model_type).
bool has_family(const std::string& model_type) noexcept;
std::vector<std::string> families();

// Loads a model. `config` is the text of a config.json object, with GGUF metadata already put in its words.
// Throws Error: kCheckpoint for what is missing or misshapen, kUnsupportedFeature for what is valid but not built.
// `source` must outlive the model (embedding rows are read from it).
std::unique_ptr<Model> load_model(Context& context, const std::string& config, const TensorSource& source,
                                  const ModelOptions& options, const Progress& progress);

}  // namespace pocket
