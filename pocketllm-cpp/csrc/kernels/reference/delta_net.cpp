#include "kernels/delta_net.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/memory.h"
#include "kernels/reference/operations.h"

namespace pocket::reference {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// x / sqrt(sum(x^2) + 1e-6), times factor.
void normalize(double* x, std::int64_t count, double factor) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) sum += x[i] * x[i];
  for (std::int64_t i = 0; i < count; ++i) x[i] *= factor / std::sqrt(sum + 1e-6);
}

// A layer of a slot, all double: a state that is rounded after each call would depend on where the calls were cut.
std::int64_t state_size(const DeltaNetShape& shape) {
  return std::int64_t{shape.num_value_heads} * shape.key_dim * shape.value_dim;
}
std::int64_t layer_size(const DeltaNetShape& shape) {
  return state_size(shape) + (shape.kernel_size - 1) * shape.conv_channels();
}

// What a sequence's rows are computed with, where this device's content lies; `at` is a row of the sequence.
struct Rows {
  const float *mixed, *z, *alpha, *beta;
  float* out;
};

Rows reach_all(const DeltaNetShape& shape, const DeltaNetInputs& inputs, const SequenceRows& sequence, float* out,
               std::int64_t out_stride) {
  const std::int64_t first = sequence.first_row, count = sequence.num_rows;
  const std::int64_t value_width = std::int64_t{shape.num_value_heads} * shape.value_dim;
  return {reach_rows(inputs.mixed + first * inputs.mixed_stride, count, shape.conv_channels(), inputs.mixed_stride),
          reach_rows(inputs.z + first * inputs.z_stride, count, value_width, inputs.z_stride),
          reach_rows(inputs.alpha + first * inputs.alpha_stride, count, shape.num_value_heads, inputs.alpha_stride),
          reach_rows(inputs.beta + first * inputs.beta_stride, count, shape.num_value_heads, inputs.beta_stride),
          reach_rows(out + first * out_stride, count, value_width, out_stride)};
}

DeltaNetWeights reach_all(const DeltaNetShape& shape, const DeltaNetWeights& weights) {
  return {reach(weights.conv, shape.conv_channels() * shape.kernel_size),
          reach(weights.decay, shape.num_value_heads), reach(weights.dt_bias, shape.num_value_heads),
          reach(weights.norm, shape.value_dim), weights.eps};
}

// silu of the convolution of one row with the tail's before it, which moves on by the row.
std::vector<double> convolve(const DeltaNetShape& shape, const float* taps, const float* mixed, double* tail) {
  const std::int64_t num_channels = shape.conv_channels();
  const std::int64_t num_before = shape.kernel_size - 1;
  std::vector<double> x(static_cast<std::size_t>(num_channels));
  for (std::int64_t c = 0; c < num_channels; ++c) {
    const float* channel_taps = taps + c * shape.kernel_size;
    double sum = double{channel_taps[num_before]} * double{mixed[c]};
    for (std::int64_t t = 0; t < num_before; ++t) sum += double{channel_taps[t]} * tail[t * num_channels + c];
    x[static_cast<std::size_t>(c)] = sum * sigmoid(sum);
  }
  if (num_before == 0) return x;
  std::copy(tail + num_channels, tail + num_before * num_channels, tail);
  std::copy_n(mixed, num_channels, tail + (num_before - 1) * num_channels);
  return x;
}

// The delta rule of one head for one row; s [key_dim, value_dim] moves on. Returns the head's output.
std::vector<double> step(const DeltaNetShape& shape, const double* query, const double* key, const double* value,
                         double decay, double beta, double* s) {
  const std::int64_t key_dim = shape.key_dim, value_dim = shape.value_dim;
  std::vector<double> result(static_cast<std::size_t>(value_dim));
  for (std::int64_t d = 0; d < value_dim; ++d) {
    double predicted = 0.0;
    for (std::int64_t k = 0; k < key_dim; ++k) predicted += key[k] * (s[k * value_dim + d] *= decay);
    const double delta = beta * (value[d] - predicted);
    double sum = 0.0;
    for (std::int64_t k = 0; k < key_dim; ++k) sum += query[k] * (s[k * value_dim + d] += key[k] * delta);
    result[static_cast<std::size_t>(d)] = sum;
  }
  return result;
}

// Row by row whatever `chunked` says.
void delta_net(Context& context, DeltaNetStates& states, std::int32_t layer, const DeltaNetWeights& device_weights,
               const SequenceTable& sequences, const DeltaNetInputs& inputs, float* out, std::int64_t out_stride) {
  check_device(context, states.device(), "A recurrent state");
  const DeltaNetShape& shape = states.shape();
  const DeltaNetWeights weights = reach_all(shape, device_weights);
  const std::int64_t key_dim = shape.key_dim, value_dim = shape.value_dim;
  const std::int64_t group = shape.num_value_heads / shape.num_key_heads;
  for (const SequenceRows& sequence : rows_of(context, sequences)) {
    if (sequence.num_rows == 0) continue;
    const Rows rows = reach_all(shape, inputs, sequence, out, out_stride);
    auto* slot = reinterpret_cast<double*>(states.slot(sequence.state_slot));
    double* state = reach(slot + layer * layer_size(shape), layer_size(shape));
    for (std::int64_t row = 0; row < sequence.num_rows; ++row) {
      std::vector<double> x =
          convolve(shape, weights.conv, rows.mixed + row * inputs.mixed_stride, state + state_size(shape));
      for (std::int64_t head = 0; head < shape.num_key_heads; ++head) {
        normalize(x.data() + head * key_dim, key_dim, 1.0 / std::sqrt(static_cast<double>(key_dim)));
        normalize(x.data() + (shape.num_key_heads + head) * key_dim, key_dim, 1.0);
      }
      for (std::int64_t head = 0; head < shape.num_value_heads; ++head) {
        const std::int64_t key_head = shape.tiled_value_heads ? head % shape.num_key_heads : head / group;
        const double beta = sigmoid(rows.beta[row * inputs.beta_stride + head]);
        const double rate = double{rows.alpha[row * inputs.alpha_stride + head]} + double{weights.dt_bias[head]};
        const double softplus = rate > 30.0 ? rate : std::log1p(std::exp(rate));
        const std::vector<double> result =
            step(shape, x.data() + key_head * key_dim, x.data() + (shape.num_key_heads + key_head) * key_dim,
                 x.data() + 2 * shape.num_key_heads * key_dim + head * value_dim,
                 std::exp(double{weights.decay[head]} * softplus), beta, state + head * key_dim * value_dim);
        double squares = 0.0;
        for (const double each : result) squares += each * each;
        const double factor = 1.0 / std::sqrt(squares / static_cast<double>(value_dim) + double{weights.eps});
        for (std::int64_t d = 0; d < value_dim; ++d) {
          const double z = rows.z[row * inputs.z_stride + head * value_dim + d];
          const double y = result[static_cast<std::size_t>(d)] * factor * double{weights.norm[d]} * z * sigmoid(z);
          rows.out[row * out_stride + head * value_dim + d] = static_cast<float>(y);
        }
      }
    }
  }
}

}  // namespace

void add_delta_net(Operations& table) noexcept {
  table.delta_net_slot_bytes = [](const DeltaNetShape& shape) {
    return static_cast<std::size_t>(layer_size(shape) * shape.num_layers) * sizeof(double);
  };
  table.delta_net = delta_net;
}

}  // namespace pocket::reference
