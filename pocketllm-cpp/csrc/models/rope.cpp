#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/error.h"

namespace pocket {
namespace {

constexpr std::int64_t kFirstPositions = 1024;
constexpr double kTwoPi = 2 * std::numbers::pi;
// A share that was divided out of whole numbers may come back a hair below them.
constexpr double kRounding = 1e-6;

// The numbers of one rule. Some may also stand in the configuration around it, the base under a name of its own.
class RopeReader {
 public:
  RopeReader(const ConfigReader& outer, std::string_view theta_key, const JsonValue* rule)
      : outer_(outer), theta_key_(theta_key) {
    if (rule == nullptr) return;
    if (!rule->is_object()) fail_config("rope_parameters", ConfigReader::shown(*rule), "is not an object");
    rule_.emplace(*rule);
  }

  std::string type() const { return rule_ ? rule_->text("rope_type", rule_->text("type", "default")) : "default"; }
  double theta(double fallback) const {
    return has("rope_theta") ? rule_->positive("rope_theta") : outer_.positive(theta_key_, fallback);
  }
  double partial_factor(double fallback) const {
    return has("partial_rotary_factor") ? rule_->positive("partial_rotary_factor")
                                        : outer_.positive("partial_rotary_factor", fallback);
  }
  double original_max_positions() const {
    return has("original_max_position_embeddings") ? rule_->positive("original_max_position_embeddings")
                                                   : outer_.positive("max_position_embeddings", 2048.0);
  }
  double required(std::string_view key) const {
    if (!has(key)) fail_config(key, "(absent)", "is required by the rope rule");
    return rule_->positive(key);
  }
  double number(std::string_view key, double fallback) const { return has(key) ? rule_->positive(key) : fallback; }
  std::optional<double> optional_number(std::string_view key) const {
    return has(key) ? std::optional<double>(rule_->positive(key)) : std::nullopt;
  }
  bool flag(std::string_view key, bool fallback) const { return rule_ ? rule_->flag(key, fallback) : fallback; }

 private:
  bool has(std::string_view key) const { return rule_ && rule_->has(key); }

  const ConfigReader& outer_;
  std::string_view theta_key_;
  std::optional<ConfigReader> rule_;
};

bool has_rule_per_layer_type(const JsonValue& parameters) {
  if (!parameters.is_object()) return false;
  for (const JsonMember& member : parameters.members()) {
    if (member.value.is_object()) return true;
  }
  return false;
}

RopeSettings read(const RopeReader& reader, const RopeDefaults& defaults) {
  RopeSettings settings;
  settings.type = reader.type();
  settings.theta = reader.theta(defaults.theta);
  settings.partial_factor = reader.partial_factor(defaults.partial_factor);
  if (settings.partial_factor > 1) {
    fail_config("partial_rotary_factor", std::to_string(settings.partial_factor), "is above 1");
  }
  if (settings.type == "default") return settings;
  if (settings.type != "linear" && settings.type != "llama3" && settings.type != "yarn") {
    refuse_config("rope_type", "\"" + settings.type + "\"", "default, linear, llama3 and yarn are");
  }
  settings.factor = reader.required("factor");
  if (settings.type == "linear") return settings;
  settings.original_max_positions = reader.original_max_positions();
  if (settings.type == "llama3") {
    settings.low_frequency_factor = reader.required("low_freq_factor");
    settings.high_frequency_factor = reader.required("high_freq_factor");
    if (settings.high_frequency_factor <= settings.low_frequency_factor) {
      fail_config("high_freq_factor", std::to_string(settings.high_frequency_factor), "is not above low_freq_factor");
    }
    return settings;
  }
  settings.beta_fast = reader.number("beta_fast", 32.0);
  settings.beta_slow = reader.number("beta_slow", 1.0);
  settings.truncate = reader.flag("truncate", true);
  settings.attention_factor = reader.optional_number("attention_factor");
  settings.mscale = reader.optional_number("mscale");
  settings.mscale_all_dim = reader.optional_number("mscale_all_dim");
  if (settings.theta <= 1) fail_config("rope_theta", std::to_string(settings.theta), "is not above 1, as yarn needs");
  return settings;
}

// Llama 3's rule: slow pairs are interpolated by `factor`, fast ones kept, those between blended. With wavelength
// w = 2 pi / f, context c and s = (c / w - low) / (high - low) held in [0, 1]: f' = (1 - s) f / factor + s f.
void scale_llama3(const RopeSettings& settings, std::vector<double>& inverse) {
  const double low = settings.low_frequency_factor;
  const double range = settings.high_frequency_factor - low;
  for (double& frequency : inverse) {
    const double turns = settings.original_max_positions * frequency / kTwoPi;
    const double kept = std::clamp((turns - low) / range, 0.0, 1.0);
    frequency = (1 - kept) * frequency / settings.factor + kept * frequency;
  }
}

// YaRN (Peng et al., 2023): pairs that turn more than beta_fast times over the original context are kept, those below
// beta_slow interpolated, with a linear ramp over the pair's index between.
void scale_yarn(const RopeSettings& settings, std::int64_t rotary_dim, std::vector<double>& inverse) {
  const auto pair_that_turns = [&](double times) {
    return static_cast<double>(rotary_dim) * std::log(settings.original_max_positions / (times * kTwoPi)) /
           (2 * std::log(settings.theta));
  };
  double first = pair_that_turns(settings.beta_fast);
  double last = pair_that_turns(settings.beta_slow);
  if (settings.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(rotary_dim - 1));
  if (first == last) last += 0.001;
  for (std::size_t pair = 0; pair < inverse.size(); ++pair) {
    const double slowed = std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0);
    inverse[pair] = inverse[pair] / settings.factor * slowed + inverse[pair] * (1 - slowed);
  }
}

double yarn_attention_factor(const RopeSettings& settings) {
  if (settings.attention_factor) return *settings.attention_factor;
  const auto magnitude = [&](double weight) {
    return settings.factor <= 1 ? 1.0 : 0.1 * weight * std::log(settings.factor) + 1.0;
  };
  if (settings.mscale && settings.mscale_all_dim) {
    return magnitude(*settings.mscale) / magnitude(*settings.mscale_all_dim);
  }
  return magnitude(1.0);
}

}  // namespace

RopeSettings read_rope(const ConfigReader& config, const RopeDefaults& defaults) {
  const JsonValue* rule = config.find("rope_parameters");
  return read(RopeReader(config, "rope_theta", rule != nullptr ? rule : config.find("rope_scaling")), defaults);
}

RopeSettings read_full_layers_rope(const ConfigReader& config, const RopeDefaults& defaults) {
  const JsonValue* rule = config.find("rope_parameters");
  if (rule == nullptr || !has_rule_per_layer_type(*rule)) return read_rope(config, defaults);
  return read(RopeReader(config, "rope_theta", ConfigReader(*rule).find("full_attention")), defaults);
}

RopeSettings read_sliding_layers_rope(const ConfigReader& config, const RopeDefaults& defaults) {
  const JsonValue* rule = config.find("rope_parameters");
  const bool per_type = rule != nullptr && has_rule_per_layer_type(*rule);
  const JsonValue* own = per_type ? ConfigReader(*rule).find("sliding_attention") : nullptr;
  return read(RopeReader(config, "rope_local_base_freq", own), defaults);
}

RopeFrequencies rope_frequencies(const RopeSettings& settings, std::int64_t head_dim, std::span<const float> divisors) {
  const double wanted = static_cast<double>(head_dim) * settings.partial_factor;
  const std::int64_t rotary_dim = static_cast<std::int64_t>(wanted + kRounding);
  if (rotary_dim < 2 || rotary_dim % 2 != 0) {
    fail_config("head_dim", std::to_string(head_dim),
                "times partial_rotary_factor is " + std::to_string(rotary_dim) + ", not a positive even number");
  }
  RopeFrequencies frequencies;
  frequencies.inverse.resize(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t pair = 0; pair < frequencies.inverse.size(); ++pair) {
    frequencies.inverse[pair] =
        std::pow(settings.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dim));
  }
  if (!divisors.empty()) {
    for (std::size_t pair = 0; pair < frequencies.inverse.size(); ++pair) {
      if (!(divisors[pair] > 0) || !std::isfinite(divisors[pair])) {
        throw Error(ErrorKind::kCheckpoint, "tensor rope_freqs.weight holds " + std::to_string(divisors[pair]) +
                                                ", not a positive divisor. Convert the model again.");
      }
      frequencies.inverse[pair] /= static_cast<double>(divisors[pair]);
    }
  } else if (settings.type == "linear") {
    for (double& frequency : frequencies.inverse) frequency /= settings.factor;
  } else if (settings.type == "llama3") {
    scale_llama3(settings, frequencies.inverse);
  } else if (settings.type == "yarn") {
    scale_yarn(settings, rotary_dim, frequencies.inverse);
    frequencies.attention_factor = yarn_attention_factor(settings);
  }
  return frequencies;
}

void RotaryAngles::cover(Context& context, std::int64_t num_positions) {
  if (num_positions <= num_positions_) return;
  std::int64_t wanted = std::max(num_positions_, kFirstPositions);
  while (wanted < num_positions) wanted *= 2;
  float* data = data_.reserve<float>(context.device, static_cast<std::size_t>(wanted * table().rotary_dim));
  fill_rotary_table(context, frequencies_.inverse, frequencies_.attention_factor, wanted, data);
  num_positions_ = wanted;
}

}  // namespace pocket
