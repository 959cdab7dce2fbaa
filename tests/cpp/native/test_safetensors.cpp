#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <sys/stat.h>

#include "check.h"
#include "checkpoint_bytes.h"
#include "core/checkpoint_source.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "core/safetensors.h"
#include "refusals.h"
#include "temporary_folder.h"

namespace {

using checkpoint_bytes::exact;
using checkpoint_bytes::packed;
using checkpoint_bytes::safetensors;
using pocket::DType;
using pocket::ErrorKind;
using pocket::open_tensor_source;
using pocket::StoredTensor;

bool refuses_bytes(const std::string& bytes, const std::string& reason, ErrorKind kind = ErrorKind::kCheckpoint) {
  const std::vector<std::byte> file = exact(bytes);
  return refuses([&] { pocket::parse_safetensors(file, "w.safetensors"); }, reason, kind);
}

// A header padded with spaces to a multiple of 8, as writers do.
std::string file_of(std::string header, const std::string& data) {
  header += std::string((8 - header.size() % 8) % 8, ' ');
  return safetensors(header, data);
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"w\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
}

}  // namespace

TEST(every_type_the_engine_reads) {
  const std::vector<std::pair<std::string, DType>> types = {
      {"F32", DType::kF32}, {"F16", DType::kF16}, {"BF16", DType::kBF16},      {"I32", DType::kI32},
      {"I64", DType::kI64}, {"U8", DType::kU8},   {"I8", DType::kI8},          {"BOOL", DType::kU8},
      {"F8_E4M3", DType::kF8E4M3},                {"F8_E8M0", DType::kF8E8M0},
  };
  for (const auto& [name, dtype] : types) {
    const std::size_t num_bytes = 6 * static_cast<std::size_t>(pocket::info(dtype).block_bytes);
    const std::string data(num_bytes, 'x');
    const auto file = exact(file_of(one(name, "[3,2]", "[0," + std::to_string(num_bytes) + "]"), data));
    const std::vector<StoredTensor> tensors = pocket::parse_safetensors(file, "w");
    CHECK_EQUAL(tensors.size(), 1u);
    CHECK_EQUAL(tensors[0].name, "w");
    CHECK(tensors[0].dtype == dtype);
    CHECK((tensors[0].shape == std::vector<std::int64_t>{3, 2}));
    CHECK(tensors[0].data.data() == file.data() + file.size() - num_bytes);
    CHECK_EQUAL(tensors[0].data.size(), num_bytes);
  }
  for (const char* other : {"F8_E5M2", "F64", "U16", "I16", "U32", "U64", "C64", "F4", "F6_E2M3", "F8_E4M3FNUZ"}) {
    std::string size = std::to_string(std::string(other) == "F4" ? 4 : std::string(other) == "F6_E2M3" ? 6 : 0);
    for (const int width : {8, 16, 32, 64}) {
      if (std::string(other).find(std::to_string(width)) == 1) size = std::to_string(width);
    }
    CHECK(refuses_bytes(file_of(one(other, "[8]", "[0," + size + "]"), std::string(64, '\0')), other,
                        ErrorKind::kUnsupportedFeature));
  }
}

TEST(odd_but_honest_safetensors_files_are_read) {
  CHECK(pocket::parse_safetensors(exact(safetensors("{}", "")), "w").empty());
  const auto notes = exact(file_of(R"({"__metadata__":{"format":"pt"},
      "s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
      "e":{"data_offsets":[4,4],"shape":[0,7],"dtype":"BF16"}})", packed(1.5f)));
  const auto tensors = pocket::parse_safetensors(notes, "w");
  CHECK_EQUAL(tensors.size(), 2u);
  CHECK(tensors[0].shape.empty());
  CHECK_EQUAL(tensors[0].data.size(), 4u);
  CHECK(tensors[1].data.empty());
}

TEST(damaged_files_are_refused) {
  const std::string data(64, '\0');
  CHECK(refuses_bytes("", "not even a length"));
  CHECK(refuses_bytes("1234567", "not even a length"));
  CHECK(refuses_bytes(packed<std::uint64_t>(3) + "{}", "needs 3 bytes"));
  CHECK(refuses_bytes(packed<std::uint64_t>(100'000'001) + "{}", "allowed"));
  CHECK(refuses_bytes(packed<std::uint64_t>(UINT64_MAX) + "{}", "allowed"));
  CHECK(refuses_bytes(safetensors("[]", ""), "an array where an object belongs"));
  CHECK(refuses_bytes(safetensors("{", ""), "not valid JSON"));
  CHECK(refuses_bytes(safetensors("{\"w\":1}", ""), "exactly dtype, shape and data_offsets"));
  CHECK(refuses_bytes(safetensors("{\"__metadata__\":{\"a\":1}}", ""), "values are strings"));
  CHECK(refuses_bytes(safetensors("{\"__metadata__\":[]}", ""), "values are strings"));
  CHECK(refuses_bytes(file_of(one("F32", "[1]", "[0,4],\"more\":1"), data), "exactly"));
  CHECK(refuses_bytes(file_of(one("F31", "[1]", "[0,4]"), data), "unknown dtype 'F31'"));
  CHECK(refuses_bytes(file_of(one("Q4_0", "[32]", "[0,18]"), data), "unknown dtype"));
  for (const char* shape : {"[-1]", "[1.0]", "1", "[\"1\"]", "[null]", "[1,1,1,1,1,1,1,1,1]", "[1152921504606846977]",
                            "[18446744073709551616]"}) {
    CHECK(refuses_bytes(file_of(one("F32", shape, "[0,4]"), data), "not a list of at most 8 sizes"));
  }
  CHECK(refuses_bytes(file_of(one("F32", "[1152921504606846976,1152921504606846976]", "[0,4]"), data), "impossible"));
  CHECK(refuses_bytes(file_of(one("F32", "[4294967296,4294967296]", "[0,0]"), data), "impossible"));
  for (const char* offsets : {"[0]", "[0,4,8]", "[-4,0]", "[0,4.0]", "4", "{}"}) {
    CHECK(refuses_bytes(file_of(one("F32", "[1]", offsets), data), "pair of byte offsets"));
  }
  for (const char* offsets : {"[0,8]", "[4,0]", "[0,0]", "[0,3]"}) {
    CHECK(refuses_bytes(file_of(one("F32", "[1]", offsets), data), "disagree"));
  }
  CHECK(refuses_bytes(file_of(one("F4", "[3]", "[0,1]"), data), "disagree"));
  CHECK(refuses_bytes(file_of(one("F32", "[1]", "[64,68]"), data), "ends at byte 68 of 64"));
  CHECK(refuses_bytes(file_of(one("F32", "[288230376151711744]", "[0,1152921504606846976]"), data), "ends at byte"));
  CHECK(refuses_bytes(file_of(one("F32", "[1]", "[2,6]"), data), "not a multiple of 4"));
  CHECK(refuses_bytes(file_of(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
      "b":{"dtype":"U8","shape":[8],"data_offsets":[7,15]}})", data), "'a' and 'b' overlap"));
  CHECK(refuses_bytes(file_of(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
      "a":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})", data), "'a' appears twice"));
  const std::string long_name = "{\"" + std::string(1025, 'n') + "\"";
  CHECK(refuses_bytes(file_of(long_name + R"(:{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", data),
                      "a name of more than"));
}

TEST(files_and_folders_open) {
  const TemporaryFolder folder;
  const std::string header = one("F32", "[2]", "[0,8]");
  const std::string path = folder.write("model.safetensors", file_of(header, packed(1.0f) + packed(2.0f)));
  for (const std::string& given : {path, folder.path()}) {
    const auto source = open_tensor_source(given);
    CHECK(source->format() == pocket::FileFormat::kSafetensors);
    CHECK_EQUAL(source->tensors().size(), 1u);
    const StoredTensor* w = source->find("w");
    CHECK(w == &source->tensors()[0]);
    CHECK(source->find("v") == nullptr);
    CHECK(source->find("") == nullptr);
    CHECK_EQUAL(reinterpret_cast<const float*>(w->data.data())[1], 2.0f);
    source->release(*w);
    CHECK_EQUAL(reinterpret_cast<const float*>(w->data.data())[1], 2.0f);
  }
}

TEST(released_pages_come_back) {
  const TemporaryFolder folder;
  std::string data;
  for (int index = 0; index < 1 << 18; ++index) data += packed(index);
  const std::string path = folder.write("one.safetensors", file_of(one("I32", "[262144]", "[0,1048576]"), data));
  const auto source = open_tensor_source(path);
  const StoredTensor& w = source->tensors()[0];
  const auto* values = reinterpret_cast<const int*>(w.data.data());
  long sum = 0;
  for (int round = 0; round < 2; ++round) {
    for (int index = 0; index < 1 << 18; ++index) sum += values[index];
    source->release(w);
  }
  CHECK_EQUAL(sum, 2L * 131072 * 262143);
}

TEST(shards_open_by_their_index) {
  const TemporaryFolder folder;
  const auto shard = [](const std::string& name, int first) {
    return file_of("{\"" + name + "\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                   "\"both\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                   packed(first) + packed(first + 1));
  };
  const auto index = [&](const std::string& map) {
    folder.write("model.safetensors.index.json", "{\"metadata\":{\"total_size\":16},\"weight_map\":" + map + "}");
  };
  const auto open = [&] { open_tensor_source(folder.path()); };
  folder.write("a.safetensors", shard("a", 10));
  folder.write("b.safetensors", shard("b", 20));
  CHECK(refuses(open, "several safetensors files"));
  index(R"({"a":"a.safetensors","b":"b.safetensors","both":"b.safetensors"})");
  const auto source = open_tensor_source(folder.path());
  CHECK_EQUAL(source->tensors().size(), 3u);
  CHECK_EQUAL(*reinterpret_cast<const int*>(source->find("a")->data.data()), 10);
  CHECK_EQUAL(*reinterpret_cast<const int*>(source->find("both")->data.data()), 21);

  index(R"({"a":"a.safetensors","b":"b.safetensors"})");
  CHECK(refuses(open, "'both' appears twice"));
  index(R"({"a":"b.safetensors","b":"b.safetensors","both":"a.safetensors"})");
  CHECK(refuses(open, "'a' among them"));
  index(R"({"a":"a.safetensors","c":"a.safetensors"})");
  CHECK(refuses(open, "'c' among them"));
  index(R"({"a":"missing.safetensors"})");
  CHECK(refuses(open, "cannot be opened"));
  for (const char* outside : {"../a.safetensors", "/etc/passwd", "x/../../y", R"(C:\\x)", R"(\\\\host\\x)", R"(..\\x)",
                              "", ".", "./", R"(a\u0000b)"}) {
    index(std::string("{\"a\":\"") + outside + "\"}");
    CHECK(refuses(open, "not a file inside the checkpoint's folder"));
  }
  index("{\"a\":1}");
  CHECK(refuses(open, "values are strings"));
  folder.write("model.safetensors.index.json", "{}");
  CHECK(refuses(open, "no weight_map"));
  folder.write("model.safetensors.index.json", "[]");
  CHECK(refuses(open, "no weight_map"));
  folder.write("model.safetensors.index.json", "");
  CHECK(refuses(open, "is empty"));
}

TEST(what_is_no_checkpoint_is_refused) {
  const TemporaryFolder folder;
  const auto open = [&](const std::string& path) { return [path] { open_tensor_source(path); }; };
  CHECK(refuses(open(folder.path()), "holds no weights"));
  CHECK(refuses(open(folder.path() + "/none.safetensors"), "cannot be opened (No such file"));
  CHECK(refuses(open(folder.write("empty.safetensors", "")), "is empty"));
  CHECK(refuses(open(folder.write("other.bin", "GGU")), "neither a GGUF file"));
  const std::string pipe = folder.path() + "/pipe";
  CHECK_EQUAL(::mkfifo(pipe.c_str(), 0600), 0);
  CHECK(refuses(open(pipe), "not a regular file"));
  CHECK(refuses([&] { pocket::MappedFile(folder.path()); }, "not a regular file"));
  CHECK(refuses(open(std::string("a\0b", 3)), "null character"));
  CHECK(refuses([] { pocket::MappedFile(std::string("a\0b", 3)); }, "null character"));
}
