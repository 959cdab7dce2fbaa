#include <string>
#include <utility>

#include "check.h"
#include "core/error.h"
#include "core/json.h"
#include "core/utf8.h"

namespace {

using pocket::Error;
using pocket::JsonLimits;
using pocket::JsonValue;
using pocket::parse_json;

std::string message_of(const std::string& text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, limits, "config.json");
  } catch (const Error& error) {
    CHECK(error.kind() == pocket::ErrorKind::kCheckpoint);
    CHECK(pocket::is_utf8(error.what()));
    return error.what();
  }
  check::fail(__FILE__, __LINE__, "parsed: " + text);
}

bool refused_for(const std::string& text, const std::string& reason, const JsonLimits& limits = {}) {
  const std::string message = message_of(text, limits);
  if (message.find(reason) != std::string::npos) return true;
  check::fail(__FILE__, __LINE__, "wrong reason: " + message);
}

}  // namespace

TEST(every_kind_of_json_value_is_read) {
  const JsonValue root = parse_json(
      "\xEF\xBB\xBF {\"n\": null, \"t\": true, \"f\":false, \"i\": -12, \"d\": 0.5, \"e\": 1e-05, \"s\": \"a\", "
      "\"a\": [1, [], {}], \"o\": {\"x\": {\"y\": 3}}}\r\n\t ");
  CHECK(root.is_object());
  CHECK_EQUAL(root.members().size(), 9u);
  CHECK_EQUAL(root.members()[0].name, "n");
  CHECK(root.at("n").is_null());
  CHECK(root.at("t").as_bool());
  CHECK(!root.at("f").as_bool());
  CHECK(root.at("i").is_int());
  CHECK_EQUAL(root.at("i").as_int(), -12);
  CHECK_EQUAL(root.at("i").as_number(), -12.0);
  CHECK(!root.at("d").is_int());
  CHECK_EQUAL(root.at("d").as_number(), 0.5);
  CHECK_EQUAL(root.at("e").as_number(), 1e-5);
  CHECK_EQUAL(root.at("s").as_string(), "a");
  CHECK_EQUAL(root.at("a").items().size(), 3u);
  CHECK(root.at("a").items()[1].items().empty());
  CHECK(root.at("a").items()[2].members().empty());
  CHECK_EQUAL(root.at("o").at("x").at("y").as_int(), 3);
  CHECK(root.find("z") == nullptr);
  CHECK(root.at("i").find("z") == nullptr);
}

TEST(numbers_are_whole_or_not) {
  const JsonValue root = parse_json("[9223372036854775807, -9223372036854775808, 9223372036854775808, 1.0, 1e2, -0]");
  CHECK_EQUAL(root.items()[0].as_int(), INT64_MAX);
  CHECK_EQUAL(root.items()[1].as_int(), INT64_MIN);
  CHECK(!root.items()[2].is_int());
  CHECK_EQUAL(root.items()[2].as_number(), 9223372036854775808.0);
  CHECK(!root.items()[3].is_int());
  CHECK(!root.items()[4].is_int());
  CHECK_EQUAL(root.items()[4].as_number(), 100.0);
  CHECK_EQUAL(root.items()[5].as_int(), 0);
  for (const char* text : {"01", "-", "+1", ".5", "1.", "1e", "1e+", "0x1", "1_0", "NaN", "Infinity", "-Infinity"}) {
    message_of(text);
  }
  CHECK(refused_for("1e999", "no double"));
}

TEST(strings_are_decoded_and_checked) {
  const JsonValue root = parse_json(R"(["\"\\\/\b\f\n\r\t", "\u0041\u00e9\u20AC\ud83d\uDE00", "é€😀", "\u0000"])");
  CHECK_EQUAL(root.items()[0].as_string(), "\"\\/\b\f\n\r\t");
  CHECK_EQUAL(root.items()[1].as_string(), "Aé€😀");
  CHECK_EQUAL(root.items()[2].as_string(), "é€😀");
  CHECK_EQUAL(root.items()[3].as_string(), std::string(1, '\0'));
  for (const char* half : {R"("\ud83d")", R"("\ude00")", R"("\ud83d\u0041")", R"("\ud83dx")", R"("\ud83d\n")"}) {
    CHECK(refused_for(half, "surrogate"));
  }
  for (const char* bad : {"\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "\xFF", "\x80"}) {
    CHECK(refused_for("\"" + std::string(bad) + "\"", "UTF-8"));
  }
  for (const char* bad : {R"("\x")", R"("\u12")", R"("\u12g4")", R"("\u-123")", "\"\\", "\"\\u", "\"", "\"a\nb\""}) {
    message_of(bad);
  }
}

TEST(anything_but_one_document_is_refused) {
  for (const char* text : {"", " ", "{", "[", "[1", "[1,", "[1,]", "[,1]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}",
                           "{1:1}", "[1 2]", "{\"a\":1 \"b\":2}", "]", "}", "nul", "True", "1 2", "{}{}", "'a'"}) {
    message_of(text);
  }
  CHECK(refused_for("{\"a\": 1, \"b\": 2, \"\\u0061\": 3}", "'a' appears twice"));
  CHECK(refused_for(std::string("1\0", 2), "follows the end"));
}

TEST(json_above_the_limits_is_refused) {
  CHECK(refused_for(std::string(100'000, '['), "deep"));
  const std::string deep = std::string(65, '[') + std::string(65, ']');
  CHECK_EQUAL(parse_json(deep).items().size(), 1u);
  CHECK(refused_for("[" + deep + "]", "deep"));
  CHECK(refused_for("[1,2,3]", "values allowed", {.max_values = 3}));
  CHECK_EQUAL(parse_json("[1,2,3]", {.max_values = 4}).items().size(), 3u);
  CHECK(refused_for("[1,2,3]", "bytes", {.max_bytes = 6}));
}

TEST(errors_name_the_path) {
  // Moved as a whole, the values still know where they stand.
  JsonValue first = parse_json(R"({"text_config": {"layers": [{"kind": "x"}, 2]}, "n": 1})");
  const JsonValue root = std::move(first);
  const JsonValue& layers = root.at("text_config").at("layers");
  CHECK_EQUAL(layers.path(), "text_config.layers");
  CHECK_EQUAL(layers.items()[0].at("kind").path(), "text_config.layers[0].kind");
  CHECK_EQUAL(root.path(), "the document");
  const JsonValue array = parse_json("[[1, 2]]");
  CHECK_EQUAL(array.items()[0].items()[1].path(), "[0][1]");
  try {
    layers.items()[0].at("kind").as_int();
    CHECK(false);
  } catch (const Error& error) {
    CHECK_EQUAL(std::string(error.what()),
                "text_config.layers[0].kind is a string where an integer of 64 bits belongs. "
                "Check the file against its publisher's.");
  }
  CHECK_THROWS(Error, root.at("m"));
  CHECK_THROWS(Error, layers.at("m"));
  CHECK_THROWS(Error, root.items());
  CHECK_THROWS(Error, layers.members());
  CHECK_THROWS(Error, layers.as_bool());
  CHECK_THROWS(Error, layers.as_number());
  CHECK_THROWS(Error, layers.as_string());
}

TEST(large_objects_are_searched_by_name) {
  std::string text = "{";
  for (int index = 0; index < 5000; ++index) {
    text += (index > 0 ? ",\"k" : "\"k") + std::to_string(index) + "\":" + std::to_string(index);
  }
  const JsonValue root = parse_json(text + "}");
  for (int index = 0; index < 5000; ++index) CHECK_EQUAL(root.at("k" + std::to_string(index)).as_int(), index);
  CHECK(root.find("k5000") == nullptr);
}

TEST(text_is_shown_without_harm) {
  CHECK_EQUAL(pocket::shown_text("a\x1b[31m\n"), "a?[31m?");
  const std::string shown = pocket::shown_text(std::string(199, 'x') + "é" + std::string(5, 'y'));
  CHECK_EQUAL(shown, std::string(199, 'x') + "...");
  CHECK(pocket::is_utf8(shown));
  std::string out;
  for (const std::uint32_t code : {0x24u, 0xA2u, 0x20ACu, 0x10348u}) pocket::append_utf8(out, code);
  CHECK_EQUAL(out, "$¢€𐍈");
}
