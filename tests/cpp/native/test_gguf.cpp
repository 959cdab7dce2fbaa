#include <string>
#include <vector>

#include "check.h"
#include "checkpoint_bytes.h"
#include "core/checkpoint_source.h"
#include "core/error.h"
#include "core/gguf.h"
#include "core/gguf_split.h"
#include "refusals.h"
#include "temporary_folder.h"

namespace {

using checkpoint_bytes::exact;
using checkpoint_bytes::Gguf;
using checkpoint_bytes::gguf_text;
using checkpoint_bytes::packed;
using pocket::DType;
using pocket::ErrorKind;
using pocket::open_tensor_source;
using pocket::parse_gguf;
using pocket::StoredTensor;

bool refuses_bytes(const std::string& bytes, const std::string& reason, ErrorKind kind = ErrorKind::kCheckpoint) {
  const std::vector<std::byte> file = exact(bytes);
  return refuses([&] { parse_gguf(file, "m.gguf"); }, reason, kind);
}

std::string array_of(std::uint32_t type, std::uint64_t length, const std::string& items) {
  return packed(type) + packed(length) + items;
}

// Metadata of every kind.
Gguf honest() {
  using namespace checkpoint_bytes;
  Gguf file;
  file.text("general.architecture", "llama").text("tokenizer.chat_template", std::string(3000, 'x'));
  const std::string widths[] = {packed<std::uint8_t>(1),
                                packed<std::int8_t>(-1),
                                packed<std::uint16_t>(1),
                                packed<std::int16_t>(-1),
                                packed<std::uint32_t>(1),
                                packed<std::int32_t>(-1),
                                packed(1.0f),
                                packed<std::uint8_t>(1),
                                "",
                                "",
                                packed<std::uint64_t>(1),
                                packed<std::int64_t>(-1),
                                packed(1.0)};
  for (std::uint32_t type = 0; type < 13; ++type) {
    if (type != kString && type != kArray) file.key("n." + std::to_string(type), type, widths[type]);
  }
  file.key("texts", kArray, array_of(kString, 3, gguf_text("a") + gguf_text("") + gguf_text("ccc")));
  file.key("deep", kArray, array_of(kArray, 2, array_of(kArray, 1, array_of(kI32, 2, packed(1) + packed(2))) +
                                                   array_of(kU8, 0, "")));
  return file;
}

}  // namespace

TEST(every_type_the_engine_reads) {
  Gguf file = honest();
  std::vector<DType> expected;
  for (std::uint32_t type = 0; type < 64; ++type) {
    const auto dtype = pocket::dtype_from_gguf(type);
    if (!dtype) continue;
    expected.push_back(*dtype);
    const auto block = static_cast<std::uint64_t>(pocket::info(*dtype).block_elements);
    const std::string bytes(6 * static_cast<std::size_t>(pocket::info(*dtype).block_bytes), static_cast<char>(type));
    file.tensor("t." + std::to_string(type), {2 * block, 3}, type, bytes);
  }
  for (const std::uint32_t version : {2u, 3u}) {
    file.version = version;
    const auto bytes = exact(file.bytes());
    const pocket::GgufFile parsed = parse_gguf(bytes, "m");
    CHECK_EQUAL(parsed.tensors.size(), expected.size());
    CHECK(!parsed.split_count);
    for (std::size_t index = 0; index < expected.size(); ++index) {
      const StoredTensor& tensor = parsed.tensors[index];
      const pocket::DTypeInfo& type = pocket::info(expected[index]);
      CHECK(tensor.dtype == expected[index]);
      CHECK((tensor.shape == std::vector<std::int64_t>{3, 2 * type.block_elements}));
      CHECK_EQUAL(tensor.data.size(), 6u * static_cast<std::size_t>(type.block_bytes));
      CHECK_EQUAL(tensor.name, "t." + std::to_string(static_cast<int>(tensor.data.front())));
      CHECK(tensor.data.front() == tensor.data.back());
    }
  }
}

TEST(odd_but_honest_gguf_files_are_read) {
  CHECK(parse_gguf(exact(Gguf().bytes()), "m").tensors.empty());
  const std::string header_alone = Gguf().bytes().substr(0, 24);  // nothing to align for
  CHECK(parse_gguf(exact(header_alone), "m").tensors.empty());

  Gguf file;
  file.alignment = 64;
  file.key("general.alignment", checkpoint_bytes::kU32, packed(64u));
  file.tensor("s", {}, 0, packed(1.5f)).tensor("e", {0, 7}, 0, "");
  file.tensor("four", {1, 2, 1, 3}, 0, std::string(24, 'f'));
  const auto bytes = exact(file.bytes());
  const pocket::GgufFile parsed = parse_gguf(bytes, "m");
  CHECK(parsed.tensors[0].shape.empty());
  CHECK_EQUAL(parsed.tensors[0].data.size(), 4u);
  CHECK(parsed.tensors[1].data.empty());
  CHECK((parsed.tensors[2].shape == std::vector<std::int64_t>{3, 1, 2, 1}));
  CHECK_EQUAL((parsed.tensors[2].data.data() - bytes.data()) % 64, 0);
}

TEST(damaged_headers_are_refused) {
  const std::string honest_bytes = honest().tensor("w", {4}, 0, std::string(16, 'w')).bytes();
  const std::size_t data_start = honest_bytes.size() - 32;
  for (std::size_t length = 0; length < honest_bytes.size() - 16; ++length) {
    const auto cut = exact(std::string_view(honest_bytes).substr(0, length));
    CHECK_THROWS(pocket::Error, parse_gguf(cut, "m"));
  }
  CHECK_EQUAL(parse_gguf(exact(honest_bytes.substr(0, data_start + 16)), "m").tensors.size(), 1u);

  Gguf file;
  file.magic = "GGUX";
  CHECK(refuses_bytes(file.bytes(), "not a GGUF file"));
  CHECK(refuses_bytes("", "not a GGUF file"));
  file = Gguf();
  for (const std::uint32_t version : {0u, 1u, 4u}) {
    file.version = version;
    CHECK(refuses_bytes(file.bytes(), "where 2 or 3 is supported"));
  }
  file.version = 3u << 24;
  CHECK(refuses_bytes(file.bytes(), "big-endian"));
  for (const std::uint64_t count : {std::uint64_t{1000}, std::uint64_t{1} << 60, UINT64_MAX}) {
    file = Gguf();
    file.num_tensors = count;
    CHECK(refuses_bytes(file.bytes(), "the tensor list claims"));
    file = Gguf();
    file.num_keys = count;
    CHECK(refuses_bytes(file.bytes(), "the metadata claims"));
  }
  file = Gguf();
  file.num_tensors = (1 << 18) + 1;
  file.data = std::string(24 * ((1 << 18) + 2), '\0');
  CHECK(refuses_bytes(file.bytes(), "more than the 262144 allowed"));
  file = Gguf();
  file.num_keys = (1 << 16) + 1;
  file.data = std::string(13 * ((1 << 16) + 2), '\0');
  CHECK(refuses_bytes(file.bytes(), "more than the 65536 allowed"));
}

TEST(damaged_metadata_is_refused) {
  using namespace checkpoint_bytes;
  const auto with = [](std::uint32_t type, const std::string& payload, const std::string& key = "k") {
    return Gguf().key(key, type, payload).bytes();
  };
  CHECK(refuses_bytes(with(13, packed(1u)), "the value of 'k' has the unknown type 13"));
  CHECK(refuses_bytes(with(kBool, packed<std::uint8_t>(2)), "a boolean with the byte 2"));
  CHECK(refuses_bytes(with(kU8, packed<std::uint8_t>(1), std::string(1 << 16, 'k')), "more than the 65535 allowed"));
  CHECK(refuses_bytes(with(kU8, packed<std::uint8_t>(1), "\xFF"), "metadata key 0 is not UTF-8"));
  CHECK(refuses_bytes(with(kString, gguf_text("\xFF")), "is not UTF-8"));
  CHECK(refuses_bytes(with(kString, packed<std::uint64_t>(1000)), "needs 1000 bytes"));
  CHECK(refuses_bytes(with(kString, packed<std::uint64_t>((16 << 20) + 1)), "allowed"));
  CHECK(refuses_bytes(with(kString, packed(UINT64_MAX)), "allowed"));
  CHECK(refuses_bytes(with(kArray, array_of(99, 1, packed(1u))), "an array of the unknown type 99"));
  for (const std::uint32_t type : {kU8, kU64, kString, kArray}) {
    for (const std::uint64_t length : {std::uint64_t{1000}, (std::uint64_t{1} << 61) + 1, UINT64_MAX}) {
      CHECK(refuses_bytes(with(kArray, array_of(type, length, "")), "items and"));
    }
  }
  CHECK(refuses_bytes(with(kArray, array_of(kString, 1, packed(UINT64_MAX - 7))), "needs"));
  std::string deep = array_of(kU8, 0, "");
  for (int depth = 0; depth < 3; ++depth) deep = array_of(kArray, 1, deep);
  CHECK(refuses_bytes(with(kArray, deep), "nested more than 3 deep"));
  CHECK(refuses_bytes(with(kArray, array_of(kU8, (1 << 23) + 1, std::string((1 << 23) + 1, '\0'))), "8388608 allowed"));
  CHECK(refuses_bytes(Gguf().text("k", "a").text("k", "b").bytes(), "the metadata key 'k' appears twice"));
  for (const std::uint32_t bad : {0u, 3u, 48u, 1u << 17}) {
    CHECK(refuses_bytes(with(kU32, packed(bad), "general.alignment"), "not a power of two"));
  }
  CHECK(refuses_bytes(with(kI32, packed(-32), "general.alignment"), "not a power of two"));
  CHECK(refuses_bytes(Gguf().text("general.alignment", "32").bytes(), "not a power of two"));
  CHECK(refuses_bytes(with(kU64, packed(UINT64_MAX), "general.alignment"), "not a power of two"));
}

TEST(damaged_tensor_lists_are_refused) {
  const auto with = [](const std::vector<std::uint64_t>& sizes, std::uint32_t type, std::uint64_t offset) {
    Gguf file;
    file.data = std::string(128, '\0');
    return file.entry("w", sizes, type, offset).bytes();
  };
  CHECK_EQUAL(parse_gguf(exact(with({32}, 0, 0)), "m").tensors.size(), 1u);
  CHECK(refuses_bytes(with({33}, 0, 0), "tensor 'w' takes 132 bytes from 0"));
  CHECK(refuses_bytes(with({4}, 0, 128), "takes 16 bytes from 128"));
  CHECK(refuses_bytes(with({0}, 0, 160), "takes 0 bytes from 160"));
  CHECK(refuses_bytes(with({4}, 0, UINT64_MAX - 31), "takes 16 bytes"));
  CHECK(refuses_bytes(with({4}, 0, 4), "not aligned to 32"));
  CHECK(refuses_bytes(with({1, 1, 1, 1, 1}, 0, 0), "claims 5 dimensions"));
  CHECK(refuses_bytes(with({(std::uint64_t{1} << 60) + 1}, 0, 0), "the impossible size"));
  CHECK(refuses_bytes(with({UINT64_MAX, 0}, 0, 0), "the impossible size"));
  CHECK(refuses_bytes(with({std::uint64_t{1} << 32, std::uint64_t{1} << 32}, 0, 0), "the impossible shape"));
  CHECK(refuses_bytes(with({std::uint64_t{1} << 60, 1 << 4}, 24, 0), "the impossible shape"));
  CHECK(refuses_bytes(with({std::uint64_t{1} << 60}, 27, 0), "takes 9223372036854775808 bytes"));
  CHECK(refuses_bytes(with({33}, 2, 0), "Q4_0 cannot divide into blocks"));
  CHECK(refuses_bytes(with({128}, 12, 0), "Q4_K cannot divide into blocks"));
  CHECK(refuses_bytes(with({}, 2, 0), "rows of 1 elements"));
  for (const std::uint32_t gone : {4u, 5u, 31u, 38u, 41u, 1000u, UINT32_MAX}) {
    CHECK(refuses_bytes(with({32}, gone, 0),
                        "tensor 'w' has the storage type " + std::to_string(gone) + ", which is unknown"));
  }
  CHECK(refuses_bytes(with({256}, 16, 0), "'w' has the storage type IQ2_XXS (16)", ErrorKind::kUnsupportedFeature));
  CHECK(refuses_bytes(with({4}, 28, 0), "F64 (28)", ErrorKind::kUnsupportedFeature));

  Gguf file;
  file.data = std::string(128, '\0');
  Gguf twice = file;
  CHECK(refuses_bytes(twice.entry("w", {4}, 0, 0).entry("w", {4}, 0, 32).bytes(), "'w' appears twice"));
  Gguf overlap = file;
  CHECK(refuses_bytes(overlap.entry("a", {16}, 0, 0).entry("b", {4}, 0, 32).bytes(), "'a' and 'b' overlap"));
  Gguf loose = file;
  loose.alignment = 1;
  loose.key("general.alignment", checkpoint_bytes::kU32, packed(1u));
  // One of the two starts is not a multiple of four.
  CHECK(refuses_bytes(loose.entry("a", {1}, 0, 0).entry("b", {1}, 0, 5).bytes(), "not a multiple of 4"));
  Gguf long_name = file;
  CHECK(refuses_bytes(long_name.entry(std::string(1025, 'n'), {4}, 0, 0).bytes(), "more than the 1024 allowed"));
  Gguf no_text = file;
  CHECK(refuses_bytes(no_text.entry("\xC3", {4}, 0, 0).bytes(), "the name of tensor 0 is not UTF-8"));
}

TEST(files_and_folders_open) {
  const TemporaryFolder folder;
  const std::string path = folder.write("tiny.gguf", honest().tensor("w", {2}, 0, packed(1.0f) + packed(2.0f)).bytes());
  for (const std::string& given : {path, folder.path()}) {
    const auto source = open_tensor_source(given);
    CHECK(source->format() == pocket::FileFormat::kGguf);
    const StoredTensor* w = source->find("w");
    CHECK(w == &source->tensors()[0]);
    CHECK(source->find("W") == nullptr);
    source->release(*w);
    CHECK_EQUAL(reinterpret_cast<const float*>(w->data.data())[1], 2.0f);
  }
  // The magic number decides, not the name.
  CHECK_EQUAL(open_tensor_source(folder.write("blob", honest().bytes()))->tensors().size(), 0u);
  folder.write("other.gguf", honest().bytes());
  CHECK(refuses([&] { open_tensor_source(folder.path()); }, "several GGUF models (other.gguf, tiny.gguf)"));
}

TEST(split_models_open_by_any_part) {
  using checkpoint_bytes::kU16;
  const TemporaryFolder folder;
  const auto part = [](int number, int count, int num_tensors, const std::string& name) {
    Gguf file = honest();
    file.key("split.no", kU16, packed(static_cast<std::uint16_t>(number)));
    file.key("split.count", kU16, packed(static_cast<std::uint16_t>(count)));
    file.key("split.tensors.count", checkpoint_bytes::kI32, packed(num_tensors));
    return file.tensor(name, {1}, 26, packed(number)).bytes();
  };
  const auto path = [&](int number) { return folder.path() + "/m-0000" + std::to_string(number) + "-of-00003.gguf"; };
  const auto write = [&](int place, const std::string& bytes) {
    folder.write("m-0000" + std::to_string(place) + "-of-00003.gguf", bytes);
  };
  for (int number = 0; number < 3; ++number) write(number + 1, part(number, 3, 3, "t" + std::to_string(number)));
  for (const std::string& given : {path(1), path(2), path(3), folder.path()}) {
    const auto source = open_tensor_source(given);
    CHECK_EQUAL(source->tensors().size(), 3u);
    for (int number = 0; number < 3; ++number) {
      CHECK_EQUAL(*reinterpret_cast<const int*>(source->find("t" + std::to_string(number))->data.data()), number);
    }
  }
  const auto open = [&] { open_tensor_source(path(1)); };
  write(2, part(0, 3, 3, "t1"));
  CHECK(refuses(open, "says it is part 0 of 3, and its name says 1 of 3"));
  write(2, part(1, 4, 3, "t1"));
  CHECK(refuses(open, "says it is part 1 of 4"));
  write(2, part(1, 3, 3, "t0"));
  CHECK(refuses(open, "'t0' appears twice"));
  write(2, part(1, 3, 3, "t1"));
  write(1, part(0, 3, 4, "t0"));
  CHECK(refuses(open, "announces 4 tensors and the parts hold 3"));
  const std::string alone = folder.write("alone.gguf", part(0, 3, 3, "t0"));
  CHECK(refuses([&] { open_tensor_source(alone); }, "but is not named like one"));
  write(3, "GGUF");
  CHECK(refuses([&] { open_tensor_source(path(2)); }, "m-00003-of-00003.gguf"));
  std::filesystem::remove(path(3));
  CHECK(refuses(open, "m-00003-of-00003.gguf: cannot be opened"));
}

TEST(a_parts_name_leads_to_all_parts) {
  CHECK((pocket::split_parts("a/m-00002-of-00002.gguf") ==
         std::vector<std::string>{"a/m-00001-of-00002.gguf", "a/m-00002-of-00002.gguf"}));
  for (const char* whole : {"m.gguf", "m-0001-of-00002.gguf", "m-00001-of-00002.GGUF", "-00001-of-00002.gguf",
                            "a/-00001-of-00002.gguf", "m-0000a-of-00002.gguf", ""}) {
    CHECK((pocket::split_parts(whole) == std::vector<std::string>{whole}));
  }
  CHECK_EQUAL(pocket::split_parts("m-00001-of-99999.gguf").size(), 99999u);
  for (const char* wrong : {"m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-00000-of-00000.gguf"}) {
    CHECK(refuses([&] { pocket::split_parts(wrong); }, "a part numbered"));
  }
}
