#include "models/config_reader.h"

#include <cmath>
#include <sstream>

#include "core/error.h"

namespace pocket {

void fail_config(std::string_view key, const std::string& value, std::string_view problem) {
  throw Error(ErrorKind::kCheckpoint,
              "config.json: " + std::string(key) + " = " + value + " " + std::string(problem) +
                  ". The configuration does not describe a model; fetch or convert the checkpoint again.",
              std::string(key));
}

void refuse_config(std::string_view key, const std::string& value, std::string_view supported) {
  throw Error(ErrorKind::kUnsupportedFeature,
              "config.json: " + std::string(key) + " = " + value + " is not supported by the native engine (" +
                  std::string(supported) + "). Use another backend for this checkpoint.",
              std::string(key));
}

std::string ConfigReader::shown(const JsonValue& value) {
  if (value.is_bool()) return value.as_bool() ? "true" : "false";
  if (value.is_string()) return "\"" + value.as_string().substr(0, 100) + "\"";
  if (value.is_int()) return std::to_string(value.as_int());
  if (value.is_number()) {
    std::ostringstream text;
    text << value.as_number();
    return text.str();
  }
  return std::string(value.kind());
}

const JsonValue* ConfigReader::find(std::string_view key) const noexcept {
  const JsonValue* value = object_.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::int64_t ConfigReader::size(std::string_view key, std::int64_t max, std::optional<std::int64_t> fallback) const {
  const JsonValue* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    fail_config(key, "(absent)", "is required");
  }
  if (value->is_array() && !value->items().empty()) {
    for (const JsonValue& item : value->items()) {
      if (!item.is_int()) fail_config(key, shown(item), "is not an integer");
      if (item.as_int() != value->items()[0].as_int()) {
        refuse_config(key, "a list of different sizes per layer", "one size for all layers");
      }
    }
    value = &value->items()[0];
  }
  if (!value->is_int() || value->as_int() < 1 || value->as_int() > max) {
    fail_config(key, shown(*value), "is not an integer from 1 to " + std::to_string(max));
  }
  return value->as_int();
}

double ConfigReader::positive(std::string_view key, std::optional<double> fallback) const {
  const JsonValue* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    fail_config(key, "(absent)", "is required");
  }
  if (!value->is_number() || !std::isfinite(value->as_number()) || !(value->as_number() > 0)) {
    fail_config(key, shown(*value), "is not a positive number");
  }
  return value->as_number();
}

bool ConfigReader::flag(std::string_view key, bool fallback) const {
  const JsonValue* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) fail_config(key, shown(*value), "is neither true nor false");
  return value->as_bool();
}

std::string ConfigReader::text(std::string_view key, std::string_view fallback) const {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) fail_config(key, shown(*value), "is not a string");
  return value->as_string();
}

}  // namespace pocket
