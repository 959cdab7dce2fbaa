// JSON text that nobody vouches for: configurations, shard indexes and the headers of safetensors files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace pocket {

struct JsonMember;

// One parsed value. It can be moved as a whole, and not copied: the values inside refer to each other, so that an error
// can say where in the document its value stands.
//
// Numbers without fraction and exponent that fit int64 are integers; all others are doubles.
class JsonValue {
 public:
  JsonValue() noexcept;
  JsonValue(JsonValue&& other) noexcept;
  JsonValue& operator=(JsonValue&& other) noexcept;
  ~JsonValue();

  bool is_null() const noexcept;
  bool is_bool() const noexcept;
  bool is_int() const noexcept;
  bool is_number() const noexcept;  // an integer or a double
  bool is_string() const noexcept;
  bool is_array() const noexcept;
  bool is_object() const noexcept;

  // Each throws Error(kCheckpoint) with the value's path and kind when it is of another kind.
  bool as_bool() const;
  std::int64_t as_int() const;
  double as_number() const;
  const std::string& as_string() const;
  std::span<const JsonValue> items() const;     // of an array, in order
  std::span<const JsonMember> members() const;  // of an object, in the order of the text

  // The member of that name of an object; nullptr when it has none, or when this is not an object.
  const JsonValue* find(std::string_view key) const noexcept;
  // As find(), but throws Error(kCheckpoint) naming the path when there is none.
  const JsonValue& at(std::string_view key) const;

  // Where this value stands, as in "text_config.layer_types[3]"; "the document" for the outermost.
  std::string path() const;
  // "null", "a boolean", "an integer", "a number", "a string", "an array" or "an object".
  std::string_view kind() const noexcept;

 private:
  friend class JsonParser;
  struct Array;
  struct Object;

  void adopt_children() noexcept;
  [[noreturn]] void fail_kind(std::string_view wanted) const;

  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, std::unique_ptr<Array>, std::unique_ptr<Object>>
      value_;
  const JsonValue* parent_ = nullptr;       // nullptr also for what stands directly in the outermost value, which moves
  const std::string* name_ = nullptr;       // of a member
  std::int64_t index_ = -1;                 // of an item
};

struct JsonMember {
  std::string name;
  JsonValue value;
};

struct JsonLimits {
  std::size_t max_bytes = std::size_t{16} << 20;
  // A value takes about 64 bytes, a member 100.
  std::size_t max_values = 1 << 20;
  int max_depth = 64;
};

// Parses one JSON document (RFC 8259) as UTF-8, with nothing but white space around it; a byte order mark is skipped.
// Throws Error(kCheckpoint) with `where` and the byte for anything else, among it: names repeated in one object,
// escapes of half a surrogate pair, numbers beyond a double, NaN and Infinity, and texts past the limits.
JsonValue parse_json(std::string_view text, const JsonLimits& limits = {}, std::string_view where = "JSON");

}  // namespace pocket
