#include <cmath>
#include <vector>

#include "kernels/delta_net.h"

namespace pocket {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// x / sqrt(sum(x^2) + 1e-6), times factor.
void normalize(double* x, std::int64_t count, double factor) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) sum += x[i] * x[i];
  for (std::int64_t i = 0; i < count; ++i) x[i] *= factor / std::sqrt(sum + 1e-6);
}

}  // namespace

void delta_net_reference(DeltaNetStates& states, std::int32_t layer, const DeltaNetWeights& weights,
                         std::span<const SequenceRows> sequences, const DeltaNetInputs& inputs, float* out,
                         std::int64_t out_stride) {
  const DeltaNetShape& shape = states.shape();
  const std::int64_t num_channels = shape.conv_channels();
  const std::int64_t key_dim = shape.key_dim;
  const std::int64_t value_dim = shape.value_dim;
  const std::int64_t group = shape.num_value_heads / shape.num_key_heads;
  const std::int64_t state_size = shape.num_value_heads * key_dim * value_dim;
  for (const SequenceRows& sequence : sequences) {
    float* stored = states.recurrent(sequence.state_slot, layer);
    float* tail = states.conv_tail(sequence.state_slot, layer);
    std::vector<double> state(stored, stored + state_size);
    // The rows that enter the convolution, oldest first.
    std::vector<std::vector<float>> window;
    for (std::int64_t i = 0; i < shape.kernel_size - 1; ++i) {
      window.emplace_back(tail + i * num_channels, tail + (i + 1) * num_channels);
    }
    for (std::int64_t row = 0; row < sequence.num_rows; ++row) {
      const std::int64_t at = sequence.first_row + row;
      const float* mixed = inputs.mixed + at * inputs.mixed_stride;
      window.emplace_back(mixed, mixed + num_channels);
      std::vector<double> x(static_cast<std::size_t>(num_channels));
      for (std::int64_t c = 0; c < num_channels; ++c) {
        double sum = 0.0;
        for (std::int64_t t = 0; t < shape.kernel_size; ++t) {
          sum += double{weights.conv[c * shape.kernel_size + t]} *
                 double{window[static_cast<std::size_t>(t)][static_cast<std::size_t>(c)]};
        }
        x[static_cast<std::size_t>(c)] = sum * sigmoid(sum);
      }
      window.erase(window.begin());
      for (std::int64_t head = 0; head < shape.num_key_heads; ++head) {
        normalize(x.data() + head * key_dim, key_dim, 1.0 / std::sqrt(static_cast<double>(key_dim)));
        normalize(x.data() + (shape.num_key_heads + head) * key_dim, key_dim, 1.0);
      }
      for (std::int64_t head = 0; head < shape.num_value_heads; ++head) {
        const std::int64_t key_head = shape.tiled_value_heads ? head % shape.num_key_heads : head / group;
        const double* query = x.data() + key_head * key_dim;
        const double* key = x.data() + (shape.num_key_heads + key_head) * key_dim;
        const double* value = x.data() + 2 * shape.num_key_heads * key_dim + head * value_dim;
        const double beta = sigmoid(inputs.beta[at * inputs.beta_stride + head]);
        const double pre = double{inputs.alpha[at * inputs.alpha_stride + head]} + double{weights.dt_bias[head]};
        const double decay = std::exp(double{weights.decay[head]} * (pre > 30.0 ? pre : std::log1p(std::exp(pre))));
        double* s = state.data() + head * key_dim * value_dim;
        std::vector<double> result(static_cast<std::size_t>(value_dim));
        double squares = 0.0;
        for (std::int64_t d = 0; d < value_dim; ++d) {
          double predicted = 0.0;
          for (std::int64_t k = 0; k < key_dim; ++k) predicted += key[k] * (s[k * value_dim + d] *= decay);
          const double delta = beta * (value[d] - predicted);
          double sum = 0.0;
          for (std::int64_t k = 0; k < key_dim; ++k) sum += query[k] * (s[k * value_dim + d] += key[k] * delta);
          result[static_cast<std::size_t>(d)] = sum;
          squares += sum * sum;
        }
        const double factor = 1.0 / std::sqrt(squares / static_cast<double>(value_dim) + double{weights.eps});
        for (std::int64_t d = 0; d < value_dim; ++d) {
          const double z = inputs.z[at * inputs.z_stride + head * value_dim + d];
          const double y = result[static_cast<std::size_t>(d)] * factor * double{weights.norm[d]} * z * sigmoid(z);
          out[at * out_stride + head * value_dim + d] = static_cast<float>(y);
        }
      }
    }
    for (std::int64_t i = 0; i < state_size; ++i) stored[i] = static_cast<float>(state[static_cast<std::size_t>(i)]);
    for (std::int64_t i = 0; i < shape.kernel_size - 1; ++i) {
      for (std::int64_t c = 0; c < num_channels; ++c) {
        tail[i * num_channels + c] = window[static_cast<std::size_t>(i)][static_cast<std::size_t>(c)];
      }
    }
  }
}

}  // namespace pocket
