// Mutated safetensors files, shard indexes and configurations: each parses or ends in one Error, in memory bounded by
// the file's size.
#include "checkpoint_bytes.h"
#include "core/dtype.h"
#include "core/json.h"
#include "core/safetensors.h"
#include "core/utf8.h"
#include "fuzz_input.h"

namespace {

using checkpoint_bytes::safetensors;

std::vector<std::string> seeds() {
  std::string header = R"({"__metadata__":{"format":"pt"},
      "a.weight":{"dtype":"F32","shape":[4,2],"data_offsets":[0,32]},
      "b.weight":{"dtype":"BF16","shape":[3],"data_offsets":[32,38]},
      "c.scale":{"dtype":"F8_E8M0","shape":[],"data_offsets":[38,39]},
      "e":{"dtype":"I64","shape":[0],"data_offsets":[39,39]}})";
  header += std::string((8 - header.size() % 8) % 8, ' ');
  return {safetensors(header, std::string(39, 'd')), safetensors("{}", "")};
}

std::vector<std::string> pieces() {
  std::string objects;
  for (int depth = 0; depth < 50'000; ++depth) objects += "{\"a\":";
  return {"-1", "1e999", "1e-999", "NaN", "null", "true", "[]", "{}", "\"\"", "\"../../x\"", std::string(5000, '9'),
          "1152921504606846976", "9223372036854775808", "0.5", "1E+2", std::string(100'000, '['), objects,
          R"("\ud800")", R"("\ud83d\ude00\u0000")", "\"\xED\xA0\x80\"", "\"\xF0\x9F\x98\x80\"",
          R"("w":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)", "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]",
          R"({"a":0,"b":[1,{"c":"d"}],"\u0061":2})"};
}

void parse_file(const std::string& bytes) {
  const std::vector<std::byte> file = checkpoint_bytes::exact(bytes);
  for (const pocket::StoredTensor& tensor : pocket::parse_safetensors(file, "w.safetensors")) {
    fuzz::touch(tensor.data);
    std::size_t num_bytes = static_cast<std::size_t>(pocket::info(tensor.dtype).block_bytes);
    for (const std::int64_t size : tensor.shape) num_bytes *= static_cast<std::size_t>(size);
    if (num_bytes != tensor.data.size()) throw std::logic_error("shape and bytes disagree");
    if (!pocket::is_utf8(tensor.name)) throw std::logic_error("a name that is not UTF-8");
  }
}

void parse_index(const std::string& text) {
  for (const pocket::ShardEntry& entry : pocket::parse_shard_index(text, "index.json")) {
    const bool outside = entry.file.empty() || entry.file.front() == '/' || entry.file.starts_with("../");
    if (outside) throw std::logic_error("a shard outside the folder: " + entry.file);
  }
}

// Walks all values the ways a model's loader does, right and wrong.
void visit(const pocket::JsonValue& value) {
  if (!pocket::is_utf8(value.path())) throw std::logic_error("a path that is not UTF-8");
  if (value.is_string() && !pocket::is_utf8(value.as_string())) throw std::logic_error("a string that is not UTF-8");
  if (value.is_array()) {
    for (const pocket::JsonValue& item : value.items()) visit(item);
  } else if (value.is_object()) {
    for (const pocket::JsonMember& member : value.members()) {
      if (value.find(member.name) != &member.value) throw std::logic_error("a member is not found by its name");
      visit(member.value);
    }
  } else if (value.is_number()) {
    value.as_number();
  }
  try {
    value.as_int();
  } catch (const pocket::Error& error) {
    if (value.is_int() || !pocket::is_utf8(error.what())) throw std::logic_error("an integer was refused");
  }
}

void parse_config(const std::string& text) { visit(pocket::parse_json(text, {}, "config.json")); }

}  // namespace

int main(int argc, char** argv) {
  const std::string index = R"({"metadata":{"total_size":39},
      "weight_map":{"a":"m-1.safetensors","b":"sub/m-2.safetensors"}})";
  const std::string config = R"({"model_type":"llama","eos_token_id":[1,2],"text_config":{"hidden_size":64,
      "rope_theta":1e4,"layer_types":["full_attention","sliding_attention"],"x":null,"tied":true,
      "name":"\u00e9\ud83d\ude00 é"}})";
  return fuzz::run(
      argc, argv,
      {{.name = "safetensors", .seeds = seeds(), .pieces = pieces(), .framed = true, .exercise = parse_file},
       {.name = "index", .seeds = {index}, .pieces = pieces(), .framed = false, .exercise = parse_index},
       {.name = "config", .seeds = {config, "[]"}, .pieces = pieces(), .framed = false, .exercise = parse_config}});
}
