// Checked access to the values of a config.json object.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"

namespace pocket {

// Every getter throws Error(kCheckpoint, param = key) for a value of the wrong kind or out of range. A key whose value
// is null counts as absent, as transformers has it.
class ConfigReader {
 public:
  explicit ConfigReader(const JsonValue& object) : object_(object) {}

  // nullptr when absent or null.
  const JsonValue* find(std::string_view key) const noexcept;
  bool has(std::string_view key) const noexcept { return find(key) != nullptr; }

  // An integer in [1, max]. A list of equal integers, one per layer, counts as one; unequal ones are not supported.
  std::int64_t size(std::string_view key, std::int64_t max, std::optional<std::int64_t> fallback = std::nullopt) const;
  // A finite number above zero.
  double positive(std::string_view key, std::optional<double> fallback = std::nullopt) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::string_view fallback) const;

  // The value as it is shown in messages.
  static std::string shown(const JsonValue& value);

 private:
  const JsonValue& object_;
};

// Error(kCheckpoint) and Error(kUnsupportedFeature) that name a key of the configuration.
[[noreturn]] void fail_config(std::string_view key, const std::string& value, std::string_view problem);
[[noreturn]] void refuse_config(std::string_view key, const std::string& value, std::string_view supported);

}  // namespace pocket
