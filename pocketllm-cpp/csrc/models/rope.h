// Rotary position embedding: the frequencies a checkpoint asks for, and the angles of the positions in use.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "kernels/elementwise.h"
#include "models/config_reader.h"

namespace pocket {

// One rule, in one spelling. Numbers that the rule `type` does not use keep their defaults.
struct RopeSettings {
  std::string type = "default";  // default, linear, llama3 or yarn
  double theta = 10000.0;
  double partial_factor = 1.0;  // share of each head's elements that turn
  double factor = 1.0;
  double low_frequency_factor = 1.0, high_frequency_factor = 4.0;
  double original_max_positions = 0.0;
  double beta_fast = 32.0, beta_slow = 1.0;
  bool truncate = true;
  std::optional<double> attention_factor, mscale, mscale_all_dim;
};

// What a family takes where its configuration is silent.
struct RopeDefaults {
  double theta = 10000.0;
  double partial_factor = 1.0;
};

// Reads `rope_parameters`, or the older `rope_theta` with `rope_scaling` and `partial_rotary_factor`.
// Throws Error(kUnsupportedFeature) for an unknown rule.
RopeSettings read_rope(const ConfigReader& config, const RopeDefaults& defaults);

// The same for models whose windowed layers turn by a rule of their own: rope_parameters["full_attention"] and
// ["sliding_attention"], or the older rope_local_base_freq beside rope_theta and rope_scaling (the full layers' alone).
RopeSettings read_full_layers_rope(const ConfigReader& config, const RopeDefaults& defaults);
RopeSettings read_sliding_layers_rope(const ConfigReader& config, const RopeDefaults& defaults);

struct RopeFrequencies {
  std::vector<double> inverse;  // [rotary_dim / 2], radians per position
  double attention_factor = 1.0;
};

// `divisors` [rotary_dim / 2]: a GGUF's rope_freqs.weight, which then is the whole scaling rule; empty: none.
// Throws Error(kCheckpoint) when the head cannot be split so.
RopeFrequencies rope_frequencies(const RopeSettings& settings, std::int64_t head_dim, std::span<const float> divisors);

// The angles of all positions up to the furthest one used so far. Grows by doubling: preparing a long context's angles
// at load would cost more time and memory than most uses ever need, and an angle is the same whenever it is computed.
class RotaryAngles {
 public:
  explicit RotaryAngles(RopeFrequencies frequencies) : frequencies_(std::move(frequencies)) {}

  // Makes table() cover positions [0, num_positions).
  void cover(Context& context, std::int64_t num_positions);
  RotaryTable table() const noexcept { return {data_.as<float>(), 2 * std::ssize(frequencies_.inverse)}; }

 private:
  RopeFrequencies frequencies_;
  std::int64_t num_positions_ = 0;
  DeviceBuffer data_;
};

}  // namespace pocket
