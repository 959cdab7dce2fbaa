#include "core/json.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/utf8.h"

namespace pocket {

struct JsonValue::Array {
  std::vector<JsonValue> items;
};

struct JsonValue::Object {
  std::vector<JsonMember> members;
  std::vector<std::uint32_t> by_name;  // indexes into `members`, sorted by name
};

JsonValue::JsonValue() noexcept : value_(nullptr) {}
JsonValue::JsonValue(JsonValue&& other) noexcept = default;
JsonValue& JsonValue::operator=(JsonValue&& other) noexcept = default;
JsonValue::~JsonValue() = default;

bool JsonValue::is_null() const noexcept { return std::holds_alternative<std::nullptr_t>(value_); }
bool JsonValue::is_bool() const noexcept { return std::holds_alternative<bool>(value_); }
bool JsonValue::is_int() const noexcept { return std::holds_alternative<std::int64_t>(value_); }
bool JsonValue::is_number() const noexcept { return is_int() || std::holds_alternative<double>(value_); }
bool JsonValue::is_string() const noexcept { return std::holds_alternative<std::string>(value_); }
bool JsonValue::is_array() const noexcept { return std::holds_alternative<std::unique_ptr<Array>>(value_); }
bool JsonValue::is_object() const noexcept { return std::holds_alternative<std::unique_ptr<Object>>(value_); }

bool JsonValue::as_bool() const {
  if (!is_bool()) fail_kind("a boolean");
  return std::get<bool>(value_);
}

std::int64_t JsonValue::as_int() const {
  if (!is_int()) fail_kind("an integer of 64 bits");
  return std::get<std::int64_t>(value_);
}

double JsonValue::as_number() const {
  if (is_int()) return static_cast<double>(std::get<std::int64_t>(value_));
  if (!is_number()) fail_kind("a number");
  return std::get<double>(value_);
}

const std::string& JsonValue::as_string() const {
  if (!is_string()) fail_kind("a string");
  return std::get<std::string>(value_);
}

std::span<const JsonValue> JsonValue::items() const {
  if (!is_array()) fail_kind("an array");
  return std::get<std::unique_ptr<Array>>(value_)->items;
}

std::span<const JsonMember> JsonValue::members() const {
  if (!is_object()) fail_kind("an object");
  return std::get<std::unique_ptr<Object>>(value_)->members;
}

const JsonValue* JsonValue::find(std::string_view key) const noexcept {
  if (!is_object()) return nullptr;
  const Object& object = *std::get<std::unique_ptr<Object>>(value_);
  const auto found = std::lower_bound(
      object.by_name.begin(), object.by_name.end(), key,
      [&](std::uint32_t index, std::string_view wanted) { return object.members[index].name < wanted; });
  if (found == object.by_name.end() || object.members[*found].name != key) return nullptr;
  return &object.members[*found].value;
}

const JsonValue& JsonValue::at(std::string_view key) const {
  const JsonValue* value = find(key);
  if (value != nullptr) return *value;
  if (!is_object()) fail_kind("an object");
  throw Error(ErrorKind::kCheckpoint,
              path() + " has no " + shown_text(key) + ". Check the file against its publisher's.");
}

std::string JsonValue::path() const {
  std::string out;
  for (const JsonValue* value = this; value != nullptr; value = value->parent_) {
    if (value->name_ != nullptr) {
      out = shown_text(*value->name_) + (out.empty() || out.front() == '[' ? "" : ".") + out;
    } else if (value->index_ >= 0) {
      out = "[" + std::to_string(value->index_) + "]" + (out.empty() || out.front() == '[' ? "" : ".") + out;
    }
  }
  return out.empty() ? "the document" : out;
}

std::string_view JsonValue::kind() const noexcept {
  static constexpr std::string_view kKinds[] = {"null",     "a boolean", "an integer", "a number",
                                                "a string", "an array",  "an object"};
  return kKinds[value_.index()];
}

void JsonValue::fail_kind(std::string_view wanted) const {
  throw Error(ErrorKind::kCheckpoint, path() + " is " + std::string(kind()) + " where " + std::string(wanted) +
                                          " belongs. Check the file against its publisher's.");
}

// Children know their parent by address, so this runs once nothing moves any more.
void JsonValue::adopt_children() noexcept {
  const auto adopt = [this](JsonValue& child) {
    // The outermost value is moved out of the parser: what stands in it must not know where it was.
    const bool outermost = name_ == nullptr && index_ < 0;
    child.parent_ = outermost ? nullptr : this;
  };
  if (is_array()) {
    std::int64_t index = 0;
    for (JsonValue& item : std::get<std::unique_ptr<Array>>(value_)->items) {
      adopt(item);
      item.index_ = index++;
      item.adopt_children();
    }
  } else if (is_object()) {
    for (JsonMember& member : std::get<std::unique_ptr<Object>>(value_)->members) {
      adopt(member.value);
      member.value.name_ = &member.name;
      member.value.adopt_children();
    }
  }
}

class JsonParser {
 public:
  JsonParser(std::string_view text, const JsonLimits& limits, std::string_view where)
      : text_(text), limits_(limits), where_(where) {}

  JsonValue parse() {
    if (text_.size() > limits_.max_bytes) {
      fail("the text has " + std::to_string(text_.size()) + " bytes, more than the " +
           std::to_string(limits_.max_bytes) + " allowed");
    }
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") at_ = 3;
    JsonValue value = parse_value(0);
    skip_space();
    if (at_ != text_.size()) fail("something follows the end of the document");
    value.adopt_children();
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorKind::kCheckpoint, std::string(where_) + ": not valid JSON at byte " + std::to_string(at_) + ": " +
                                            problem + ". Fetch the file again.");
  }

  bool at_end() const noexcept { return at_ == text_.size(); }

  void skip_space() noexcept {
    while (!at_end() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) ++at_;
  }

  bool take(char wanted) noexcept {
    if (at_end() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted, const char* what) {
    skip_space();
    if (!take(wanted)) fail(std::string("there should be ") + what);
  }

  JsonValue parse_value(int depth) {
    if (++num_values_ > limits_.max_values) {
      fail("the text has more than the " + std::to_string(limits_.max_values) + " values allowed");
    }
    if (depth > limits_.max_depth) fail("nested more than " + std::to_string(limits_.max_depth) + " deep");
    skip_space();
    if (at_end()) fail("the text ends where a value should be");
    JsonValue value;
    switch (text_[at_]) {
      case '{': parse_object(value, depth); break;
      case '[': parse_array(value, depth); break;
      case '"': value.value_ = parse_string(); break;
      case 't': parse_word("true"); value.value_ = true; break;
      case 'f': parse_word("false"); value.value_ = false; break;
      case 'n': parse_word("null"); break;
      default: parse_number(value); break;
    }
    return value;
  }

  void parse_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) fail("an unknown word");
    at_ += word.size();
  }

  void parse_array(JsonValue& value, int depth) {
    ++at_;
    auto array = std::make_unique<JsonValue::Array>();
    skip_space();
    if (!take(']')) {
      do {
        array->items.push_back(parse_value(depth + 1));
        skip_space();
      } while (take(','));
      expect(']', "a ',' or a ']'");
    }
    value.value_ = std::move(array);
  }

  void parse_object(JsonValue& value, int depth) {
    ++at_;
    auto object = std::make_unique<JsonValue::Object>();
    skip_space();
    if (!take('}')) {
      do {
        skip_space();
        if (at_end() || text_[at_] != '"') fail("there should be the name of a member");
        std::string name = parse_string();
        expect(':', "a ':'");
        object->members.push_back({std::move(name), parse_value(depth + 1)});
        skip_space();
      } while (take(','));
      expect('}', "a ',' or a '}'");
    }
    const std::vector<JsonMember>& members = object->members;
    std::vector<std::uint32_t>& order = object->by_name;
    order.resize(members.size());
    for (std::size_t index = 0; index < order.size(); ++index) order[index] = static_cast<std::uint32_t>(index);
    std::sort(order.begin(), order.end(),
              [&](std::uint32_t left, std::uint32_t right) { return members[left].name < members[right].name; });
    for (std::size_t index = 1; index < order.size(); ++index) {
      const std::string& name = members[order[index]].name;
      if (name != members[order[index - 1]].name) continue;
      fail("the name '" + shown_text(name) + "' appears twice in one object");
    }
    value.value_ = std::move(object);
  }

  std::string parse_string() {
    ++at_;
    std::string out;
    for (;;) {
      const std::size_t start = at_;
      while (!at_end() && text_[at_] != '"' && text_[at_] != '\\') {
        const auto byte = static_cast<unsigned char>(text_[at_]);
        if (byte < 0x20) fail("a control character in a string");
        const std::size_t length = byte < 0x80 ? 1 : utf8_length(text_.substr(at_));
        if (length == 0) fail("a string that is not UTF-8");
        at_ += length;
      }
      out.append(text_.substr(start, at_ - start));
      if (at_end()) fail("a string without an end");
      if (take('"')) return out;
      ++at_;  // the backslash
      parse_escape(out);
    }
  }

  void parse_escape(std::string& out) {
    if (at_end()) fail("a string without an end");
    const char c = text_[at_++];
    switch (c) {
      case '"':
      case '\\':
      case '/': out += c; break;
      case 'b': out += '\b'; break;
      case 'f': out += '\f'; break;
      case 'n': out += '\n'; break;
      case 'r': out += '\r'; break;
      case 't': out += '\t'; break;
      case 'u': append_utf8(out, parse_code()); break;
      default: fail("an unknown escape in a string");
    }
  }

  // The code point of one \u escape, or of the two that make up a surrogate pair.
  std::uint32_t parse_code() {
    const std::uint32_t first = parse_hex4();
    if (first < 0xD800 || first > 0xDFFF) return first;
    const bool paired = first <= 0xDBFF && text_.substr(at_, 2) == "\\u";
    if (paired) at_ += 2;
    const std::uint32_t second = paired ? parse_hex4() : 0;
    if (second < 0xDC00 || second > 0xDFFF) fail("an escape of half a surrogate pair");
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  std::uint32_t parse_hex4() {
    std::uint32_t code = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (error != std::errc() || digits.size() != 4 || end != digits.data() + 4) fail("a \\u without four digits");
    at_ += 4;
    return code;
  }

  std::size_t skip_digits() noexcept {
    const std::size_t start = at_;
    while (!at_end() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ - start;
  }

  void parse_number(JsonValue& value) {
    const std::size_t start = at_;
    take('-');
    const std::size_t first_digit = at_;
    const std::size_t num_digits = skip_digits();
    if (num_digits == 0) fail("neither a value nor the end of one");
    if (num_digits > 1 && text_[first_digit] == '0') fail("a number that begins with 0");
    bool whole = true;
    if (take('.')) {
      whole = false;
      if (skip_digits() == 0) fail("a number without digits after its point");
    }
    if (take('e') || take('E')) {
      whole = false;
      if (!take('+')) take('-');
      if (skip_digits() == 0) fail("a number without digits in its exponent");
    }
    const char* begin = text_.data() + start;
    const char* end = text_.data() + at_;
    std::int64_t integer = 0;
    if (whole && std::from_chars(begin, end, integer).ec == std::errc()) {
      value.value_ = integer;
      return;
    }
    double number = 0;
    if (std::from_chars(begin, end, number).ec != std::errc()) fail("a number that no double holds");
    value.value_ = number;
  }

  std::string_view text_;
  const JsonLimits& limits_;
  std::string_view where_;
  std::size_t at_ = 0;
  std::size_t num_values_ = 0;
};

JsonValue parse_json(std::string_view text, const JsonLimits& limits, std::string_view where) {
  return JsonParser(text, limits, where).parse();
}

}  // namespace pocket
