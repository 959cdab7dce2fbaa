// What the layers of a decoder have in common: the rows of a step on their way through, and a layer's parts.
#pragma once

#include <cstdint>
#include <span>

#include "core/device.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/sequence_rows.h"
#include "models/model.h"

namespace pocket {

// Scratch memory of one model, reused by every layer and grown as steps need it. All arrays are [rows, ...].
struct Workspace {
  DeviceBuffer residual;    // [hidden_size]: the residual stream
  DeviceBuffer normed;      // [hidden_size]: a norm's output
  DeviceBuffer projected;   // what a mixer's first product gives
  DeviceBuffer mixed;       // a mixer's output before its last product
  DeviceBuffer branch;      // [hidden_size]: a branch that is normed before it joins the residual stream
  DeviceBuffer gate_up;     // a feed-forward's first product
  DeviceBuffer activated;   // act(gate) * up
  ActivationRows normed_rows;
  ActivationRows mixed_rows;
  ActivationRows activated_rows;
};

// One step on its way through one layer.
struct LayerCall {
  Context& context;
  Caches& caches;
  Workspace& work;
  Activation activation;
  const SequenceTable& sequences;  // of all rows
  std::int64_t num_rows = 0;
  // Rows that go on once they are in the caches: all, but in the last layer those whose logits are wanted.
  const std::int32_t* kept = nullptr;     // ascending, on the device; meaningful when narrows()
  const SequenceTable* kept_sequences;    // first_row counts kept rows
  std::int64_t num_kept = 0;

  bool narrows() const noexcept { return num_kept != num_rows; }
  // Moves the kept rows of x [num_rows, width] to its front, `stride` floats apart as before.
  void keep_rows(float* x, std::int64_t width, std::int64_t stride) const {
    if (narrows()) pocket::keep_rows(context, kept, num_kept, width, stride, x);
  }
  // `count` floats of the workspace's array, on the step's device.
  float* room(DeviceBuffer& array, std::int64_t count) const {
    return array.reserve<float>(context.device, static_cast<std::size_t>(count));
  }
};

// Mixes positions: attention or a recurrence.
class Mixer {
 public:
  virtual ~Mixer() = default;
  // Takes the normed rows, all of them, into the caches, and leaves the kept rows' result in the workspace.
  virtual void mix(LayerCall& call, const ActivationRows& x) = 0;
  // y [num_kept, hidden_size] = the last product of that result, or y += it.
  virtual void project(LayerCall& call, float* y, Store store) = 0;
};

class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // y [num_rows, hidden_size] = the feed-forward of normed rows x [num_rows, hidden_size], or y += it. `rows` are x's.
  virtual void run(LayerCall& call, std::int64_t num_rows, const float* x, const ActivationRows& rows, float* y,
                   Store store) = 0;
};

class Layer {
 public:
  virtual ~Layer() = default;
  // Moves x [num_rows, hidden_size] through the layer; its first num_kept rows are the result.
  virtual void run(LayerCall& call, float* x) = 0;
};

// Norm weights and how to apply them.
struct Norm {
  DeviceBuffer weight;  // [size]
  std::int64_t size = 0;
  float eps = 1e-6f;

  // y [num_rows, size] = norm of x, both without gaps.
  void apply(Context& context, std::int64_t num_rows, const float* x, float* y) const;
  // In place, on `num_groups` heads of `size` side by side in rows `stride` floats apart.
  void apply_to_heads(Context& context, std::int64_t num_rows, std::int64_t num_groups, float* x,
                      std::int64_t stride) const;
};

}  // namespace pocket
