#include "core/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "core/json.h"
#include "core/tensor_extents.h"
#include "core/utf8.h"

namespace pocket {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used as they lie in the file");

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxIndexBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxDimensions = 8;
// A tensor makes up eight values, so this is some room above kMaxTensors of them.
constexpr std::size_t kMaxHeaderValues = 3'000'000;

struct ElementType {
  std::string_view name;
  std::int64_t bits;
};

// The format's types, whether the engine reads them or not.
constexpr std::array kElementTypes = {
    ElementType{"BOOL", 8},        ElementType{"U8", 8},           ElementType{"I8", 8},     ElementType{"F8_E4M3", 8},
    ElementType{"F8_E5M2", 8},     ElementType{"F8_E8M0", 8},      ElementType{"U16", 16},   ElementType{"I16", 16},
    ElementType{"F16", 16},        ElementType{"BF16", 16},        ElementType{"U32", 32},   ElementType{"I32", 32},
    ElementType{"F32", 32},        ElementType{"U64", 64},         ElementType{"I64", 64},   ElementType{"F64", 64},
    ElementType{"F8_E4M3FNUZ", 8}, ElementType{"F8_E5M2FNUZ", 8},  ElementType{"C64", 64},   ElementType{"F4", 4},
    ElementType{"F6_E2M3", 6},     ElementType{"F6_E3M2", 6},
};

std::optional<DType> engine_type(std::string_view name) noexcept {
  if (name == "BOOL") return DType::kU8;
  return dtype_named(name);  // the block types of GGUF are not element types, and have been refused before
}

// A list of at most `max_count` sizes in [0, 2^60]; nullopt for anything else.
std::optional<std::vector<std::int64_t>> sizes_of(const JsonValue& value, std::size_t max_count) {
  if (!value.is_array() || value.items().size() > max_count) return std::nullopt;
  std::vector<std::int64_t> sizes;
  for (const JsonValue& item : value.items()) {
    if (!item.is_int() || item.as_int() < 0 || static_cast<std::uint64_t>(item.as_int()) > kMaxElements) {
      return std::nullopt;
    }
    sizes.push_back(item.as_int());
  }
  return sizes;
}

class EntryReader {
 public:
  EntryReader(std::string_view where, std::span<const std::byte> data) : where_(where), data_(data) {}

  StoredTensor read(const JsonMember& member) const {
    const std::string& name = member.name;
    const JsonValue& entry = member.value;
    if (name.size() > kMaxTensorNameBytes) {
      fail(name, "a name of more than " + std::to_string(kMaxTensorNameBytes) + " bytes");
    }
    const JsonValue* const dtype = entry.find("dtype");
    const JsonValue* const shape = entry.find("shape");
    const JsonValue* const offsets = entry.find("data_offsets");
    if (dtype == nullptr || shape == nullptr || offsets == nullptr || entry.members().size() != 3) {
      fail(name, "an entry must be an object with exactly dtype, shape and data_offsets");
    }
    const ElementType type = element_type(name, *dtype);
    const auto sizes = sizes_of(*shape, kMaxDimensions);
    if (!sizes) fail(name, "its shape is not a list of at most " + std::to_string(kMaxDimensions) + " sizes");
    const auto range = sizes_of(*offsets, 2);
    if (!range || range->size() != 2) fail(name, "its data_offsets are not a pair of byte offsets");
    const std::int64_t num_elements = count_elements(*sizes);
    if (num_elements < 0) fail(name, "the impossible shape " + shown_shape(*sizes));

    const std::int64_t begin = (*range)[0];
    const std::int64_t end = (*range)[1];
    // At most 2^60 elements of at most 8 bytes: no product here reaches 2^64.
    const std::uint64_t bits_left = static_cast<std::uint64_t>(num_elements) % 8 * type.bits % 8;
    const std::uint64_t num_bytes = static_cast<std::uint64_t>(num_elements) / 8 * type.bits +
                                    static_cast<std::uint64_t>(num_elements) % 8 * type.bits / 8;
    if (end < begin || bits_left != 0 || static_cast<std::uint64_t>(end - begin) != num_bytes) {
      fail(name, "shape " + shown_shape(*sizes) + " of " + std::string(type.name) + " and data_offsets " +
                     shown_shape(*range) + " disagree");
    }
    if (static_cast<std::uint64_t>(end) > data_.size()) {
      fail(name, "its data ends at byte " + std::to_string(end) + " of " + std::to_string(data_.size()) +
                     " after the header");
    }
    const std::optional<DType> known = engine_type(type.name);
    if (!known) {
      throw Error(ErrorKind::kUnsupportedFeature,
                  std::string(where_) + ": tensor '" + shown_text(name) + "' has the element type " +
                      std::string(type.name) + ", which this engine does not read. Use another backend.");
    }
    StoredTensor tensor;
    tensor.name = name;
    tensor.dtype = *known;
    tensor.shape = *sizes;
    tensor.data = data_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(num_bytes));
    return tensor;
  }

 private:
  [[noreturn]] void fail(const std::string& name, const std::string& problem) const {
    throw Error(ErrorKind::kCheckpoint, std::string(where_) + ": tensor '" + shown_text(name) + "': " + problem +
                                            ". The file is damaged; fetch it again.");
  }

  ElementType element_type(const std::string& name, const JsonValue& dtype) const {
    if (dtype.is_string()) {
      for (const ElementType& type : kElementTypes) {
        if (type.name == dtype.as_string()) return type;
      }
    }
    std::string known;
    for (const ElementType& type : kElementTypes) known += (known.empty() ? "" : ", ") + std::string(type.name);
    const std::string given = dtype.is_string() ? "'" + shown_text(dtype.as_string()) + "'" : std::string(dtype.kind());
    fail(name, "unknown dtype " + given + "; known are " + known);
  }

  std::string_view where_;
  std::span<const std::byte> data_;
};

void check_text_mapping(const JsonValue& value, const std::string& where) {
  const bool is_mapping = value.is_object() && std::ranges::all_of(value.members(), [](const JsonMember& member) {
    return member.value.is_string();
  });
  if (!is_mapping) {
    throw Error(ErrorKind::kCheckpoint, where + ": must be an object whose values are strings. Fetch the file again.");
  }
}

// Judged as text: in a Hugging Face cache an honest shard is itself a link to a file elsewhere. Separators of every
// system count, so that a checkpoint means the same files everywhere.
bool lies_inside(std::string_view name) noexcept {
  if (name.empty() || name.find('\0') != std::string_view::npos) return false;
  if (name.front() == '/' || name.front() == '\\' || (name.size() > 1 && name[1] == ':')) return false;
  bool has_part = false;
  while (!name.empty()) {
    const std::size_t end = std::min(name.find_first_of("/\\"), name.size());
    const std::string_view part = name.substr(0, end);
    if (part == "..") return false;
    has_part = has_part || (!part.empty() && part != ".");
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return has_part;
}

}  // namespace

std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> file, std::string_view where) {
  const auto fail = [&](const std::string& problem) {
    throw Error(ErrorKind::kCheckpoint, std::string(where) + ": " + problem +
                                            ". The file is damaged, incomplete or of another kind; fetch it again and "
                                            "compare its size and checksum with the publisher's.");
  };
  std::uint64_t length = 0;
  if (file.size() < sizeof length) fail("the file has " + std::to_string(file.size()) + " bytes, not even a length");
  std::memcpy(&length, file.data(), sizeof length);
  const std::span<const std::byte> rest = file.subspan(sizeof length);
  if (length > kMaxHeaderBytes) {
    fail("the header claims " + std::to_string(length) + " bytes, more than the " + std::to_string(kMaxHeaderBytes) +
         " allowed");
  }
  if (length > rest.size()) {
    fail("the JSON header needs " + std::to_string(length) + " bytes and " + std::to_string(rest.size()) +
         " are left in the file");
  }
  const auto header_bytes = static_cast<std::size_t>(length);
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), header_bytes);
  const JsonLimits limits{.max_bytes = kMaxHeaderBytes, .max_values = kMaxHeaderValues, .max_depth = 8};
  const JsonValue header = parse_json(text, limits, std::string(where) + ": the JSON header");
  if (!header.is_object()) fail("the JSON header holds " + std::string(header.kind()) + " where an object belongs");
  if (header.members().size() > kMaxTensors) {
    fail(std::to_string(header.members().size()) + " tensors, more than the " + std::to_string(kMaxTensors) +
         " allowed");
  }
  if (const JsonValue* metadata = header.find("__metadata__")) {
    check_text_mapping(*metadata, std::string(where) + ": __metadata__");
  }
  const EntryReader entries(where, rest.subspan(header_bytes));
  std::vector<StoredTensor> tensors;
  tensors.reserve(header.members().size());
  for (const JsonMember& member : header.members()) {
    if (member.name != "__metadata__") tensors.push_back(entries.read(member));
  }
  check_extents(where, tensors);
  return tensors;
}

std::vector<ShardEntry> parse_shard_index(std::string_view text, std::string_view where) {
  const JsonLimits limits{.max_bytes = kMaxIndexBytes, .max_values = kMaxHeaderValues, .max_depth = 64};
  const JsonValue index = parse_json(text, limits, where);
  const JsonValue* const weight_map = index.find("weight_map");
  if (weight_map == nullptr) {
    throw Error(ErrorKind::kCheckpoint, std::string(where) + ": has no weight_map. Fetch the file again.");
  }
  check_text_mapping(*weight_map, std::string(where) + ": weight_map");
  std::vector<ShardEntry> entries;
  entries.reserve(weight_map->members().size());
  for (const JsonMember& member : weight_map->members()) {
    const std::string& file = member.value.as_string();
    if (!lies_inside(file)) {
      throw Error(ErrorKind::kCheckpoint, std::string(where) + ": the shard name '" + shown_text(file) +
                                              "' is not a file inside the checkpoint's folder.");
    }
    entries.push_back({member.name, file});
  }
  return entries;
}

}  // namespace pocket
