#include "core/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstring>

#include "core/error.h"
#include "core/tensor_extents.h"
#include "core/utf8.h"

namespace pocket {
namespace {

static_assert(std::endian::native == std::endian::little, "values are read as they lie in the file");

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint64_t kMaxKeys = 1 << 16;
constexpr std::uint64_t kMaxKeyBytes = (1 << 16) - 1;
constexpr std::uint64_t kMaxStringBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kCheckedStringBytes = 1024;
constexpr int kMaxArrayDepth = 3;
// Over all arrays of one header. A 262 144-token vocabulary with its scores, types and merges has 1.3 million.
constexpr std::uint64_t kMaxArrayItems = 1 << 23;
constexpr std::uint64_t kMaxAlignment = 1 << 16;
constexpr std::uint32_t kMaxDimensions = 4;
constexpr std::uint64_t kSmallestKeyBytes = 8 + 4 + 1;
constexpr std::uint64_t kSmallestTensorBytes = 8 + 4 + 4 + 8;

// Types of metadata values, by the format's numbers.
enum ValueType : std::uint32_t {
  kTypeU8, kTypeI8, kTypeU16, kTypeI16, kTypeU32, kTypeI32, kTypeF32, kTypeBool, kTypeString, kTypeArray,
  kTypeU64, kTypeI64, kTypeF64,
};

// Bytes of a scalar; 0 for what is none.
std::uint64_t scalar_bytes(std::uint32_t type) noexcept {
  switch (type) {
    case kTypeU8:
    case kTypeI8:
    case kTypeBool: return 1;
    case kTypeU16:
    case kTypeI16: return 2;
    case kTypeU32:
    case kTypeI32:
    case kTypeF32: return 4;
    case kTypeU64:
    case kTypeI64:
    case kTypeF64: return 8;
    default: return 0;
  }
}

// Storage types that the format has and the engine does not read, for a message that says so.
constexpr std::array<std::pair<std::uint32_t, std::string_view>, 14> kOtherTypes = {{
    {9, "Q8_1"}, {15, "Q8_K"}, {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {21, "IQ3_S"},
    {22, "IQ2_S"}, {25, "I16"}, {28, "F64"}, {29, "IQ1_M"}, {34, "TQ1_0"}, {35, "TQ2_0"}, {40, "NVFP4"},
}};

// Reads in order, and never past the end.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string_view where) : bytes_(bytes), where_(where) {}

  std::uint64_t position() const noexcept { return position_; }
  std::uint64_t size() const noexcept { return bytes_.size(); }
  std::uint64_t remaining() const noexcept { return bytes_.size() - position_; }

  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorKind::kCheckpoint, std::string(where_) + ": byte " + std::to_string(position_) + ": " + problem +
                                            ". The file is damaged, incomplete or of another kind; fetch it again and "
                                            "compare its size and checksum with the publisher's.");
  }

  // `what` is text, or a function that makes it when it is needed.
  template <class What>
  void need(std::uint64_t num_bytes, const What& what) const {
    if (num_bytes > remaining()) {
      fail(say(what) + " needs " + std::to_string(num_bytes) + " bytes and " + std::to_string(remaining()) +
           " are left in the file");
    }
  }

  // `count` things of at least `item_bytes` each must fit.
  template <class What>
  void need_items(std::uint64_t count, std::uint64_t item_bytes, const What& what) const {
    if (count > remaining() / item_bytes) {
      fail(say(what) + " claims " + std::to_string(count) + " items and " + std::to_string(remaining()) +
           " bytes are left in the file");
    }
  }

  template <class T, class What>
  T scalar(const What& what) {
    need(sizeof(T), what);
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  template <class What>
  void skip(std::uint64_t num_bytes, const What& what) {
    need(num_bytes, what);
    position_ += num_bytes;
  }

  // A u64 length and that many bytes.
  template <class What>
  std::string_view string(std::uint64_t max_bytes, const What& what) {
    const auto length = scalar<std::uint64_t>(what);
    if (length > max_bytes) {
      fail(say(what) + " claims " + std::to_string(length) + " bytes, more than the " + std::to_string(max_bytes) +
           " allowed");
    }
    need(length, what);
    const auto* text = reinterpret_cast<const char*>(bytes_.data() + position_);
    position_ += length;
    return {text, static_cast<std::size_t>(length)};
  }

  template <class What>
  std::string_view text(std::uint64_t max_bytes, const What& what) {
    const std::string_view value = string(max_bytes, what);
    if (!is_utf8(value)) fail(say(what) + " is not UTF-8");
    return value;
  }

 private:
  template <class What>
  static std::string say(const What& what) {
    if constexpr (std::invocable<const What&>) {
      return what();
    } else {
      return std::string(what);
    }
  }

  std::span<const std::byte> bytes_;
  std::string_view where_;
  std::uint64_t position_ = 0;
};

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> file, std::string_view where)
      : file_(file), where_(where), reader_(file, where) {}

  GgufFile parse() {
    if (!is_gguf(file_)) reader_.fail("not a GGUF file: it does not begin with GGUF");
    reader_.skip(kMagic.size(), "the magic number");
    const auto version = reader_.scalar<std::uint32_t>("the version");
    if (version != 2 && version != 3) {
      const std::uint32_t swapped = __builtin_bswap32(version);
      const char* const big_endian = swapped == 2 || swapped == 3 ? " (written for big-endian machines)" : "";
      reader_.fail("GGUF version " + std::to_string(version) + big_endian +
                   " where 2 or 3 is supported; convert the model again");
    }
    const auto num_tensors = reader_.scalar<std::uint64_t>("the tensor count");
    const auto num_keys = reader_.scalar<std::uint64_t>("the metadata count");
    reader_.need_items(num_tensors, kSmallestTensorBytes, "the tensor list");
    if (num_tensors > kMaxTensors) {
      reader_.fail("the header claims " + std::to_string(num_tensors) + " tensors, more than the " +
                   std::to_string(kMaxTensors) + " allowed");
    }
    read_metadata(num_keys);
    read_tensors(num_tensors);
    return std::move(result_);
  }

 private:
  void read_metadata(std::uint64_t num_keys) {
    reader_.need_items(num_keys, kSmallestKeyBytes, "the metadata");
    if (num_keys > kMaxKeys) {
      reader_.fail("the header claims " + std::to_string(num_keys) + " metadata entries, more than the " +
                   std::to_string(kMaxKeys) + " allowed");
    }
    std::vector<std::string_view> keys;
    for (std::uint64_t index = 0; index < num_keys; ++index) {
      keys.push_back(reader_.text(kMaxKeyBytes, [&] { return "metadata key " + std::to_string(index); }));
      read_value(keys.back());
    }
    std::sort(keys.begin(), keys.end());
    const auto repeated = std::adjacent_find(keys.begin(), keys.end());
    if (repeated != keys.end()) reader_.fail("the metadata key '" + shown_text(*repeated) + "' appears twice");
  }

  void read_value(std::string_view key) {
    const auto what = [&] { return "the value of '" + shown_text(key) + "'"; };
    const auto type = reader_.scalar<std::uint32_t>(what);
    // -1 for what is not an integer: no place below takes it for a valid one.
    std::int64_t integer = -1;
    if (type == kTypeString) {
      const std::string_view value = reader_.string(kMaxStringBytes, what);
      // As in core's reader: what is kept in memory there is checked, templates and the like when they are read.
      if (value.size() <= kCheckedStringBytes && !is_utf8(value)) reader_.fail(what() + " is not UTF-8");
    } else if (type == kTypeArray) {
      skip_array(what, 1);
    } else {
      integer = read_scalar(type, what);
    }
    if (key == "general.alignment") {
      if (integer < 1 || static_cast<std::uint64_t>(integer) > kMaxAlignment ||
          !std::has_single_bit(static_cast<std::uint64_t>(integer))) {
        reader_.fail("general.alignment is not a power of two up to " + std::to_string(kMaxAlignment));
      }
      alignment_ = static_cast<std::uint64_t>(integer);
    } else if (key == "split.no") {
      result_.split_number = integer;
    } else if (key == "split.count") {
      result_.split_count = integer;
    } else if (key == "split.tensors.count") {
      result_.split_tensors_count = integer;
    }
  }

  // The value of an integer in [0, 2^63), -1 for any other scalar.
  template <class What>
  std::int64_t read_scalar(std::uint32_t type, const What& what) {
    const auto whole = [](auto value) -> std::int64_t {
      return std::in_range<std::int64_t>(value) && value >= 0 ? static_cast<std::int64_t>(value) : -1;
    };
    switch (type) {
      case kTypeU8: return whole(reader_.scalar<std::uint8_t>(what));
      case kTypeI8: return whole(reader_.scalar<std::int8_t>(what));
      case kTypeU16: return whole(reader_.scalar<std::uint16_t>(what));
      case kTypeI16: return whole(reader_.scalar<std::int16_t>(what));
      case kTypeU32: return whole(reader_.scalar<std::uint32_t>(what));
      case kTypeI32: return whole(reader_.scalar<std::int32_t>(what));
      case kTypeU64: return whole(reader_.scalar<std::uint64_t>(what));
      case kTypeI64: return whole(reader_.scalar<std::int64_t>(what));
      case kTypeBool: {
        const auto value = reader_.scalar<std::uint8_t>(what);
        if (value > 1) reader_.fail(what() + " is a boolean with the byte " + std::to_string(value));
        return -1;
      }
      case kTypeF32:
      case kTypeF64: reader_.skip(scalar_bytes(type), what); return -1;
      default: reader_.fail(what() + " has the unknown type " + std::to_string(type));
    }
  }

  template <class What>
  void skip_array(const What& what, int depth) {
    if (depth > kMaxArrayDepth) {
      reader_.fail(what() + " is an array nested more than " + std::to_string(kMaxArrayDepth) + " deep");
    }
    const auto type = reader_.scalar<std::uint32_t>(what);
    const auto length = reader_.scalar<std::uint64_t>(what);
    const std::uint64_t fixed = scalar_bytes(type);
    if (fixed == 0 && type != kTypeString && type != kTypeArray) {
      reader_.fail(what() + " is an array of the unknown type " + std::to_string(type));
    }
    reader_.need_items(length, fixed != 0 ? fixed : type == kTypeArray ? 12 : 8, what);
    if (length > array_items_left_) {
      reader_.fail(what() + " brings the array items of this header above the " + std::to_string(kMaxArrayItems) +
                   " allowed");
    }
    array_items_left_ -= length;
    if (fixed != 0) {
      reader_.skip(fixed * length, what);
      return;
    }
    for (std::uint64_t index = 0; index < length; ++index) {
      if (type == kTypeArray) {
        skip_array(what, depth + 1);
      } else {
        reader_.skip(reader_.template scalar<std::uint64_t>(what), what);
      }
    }
  }

  void read_tensors(std::uint64_t num_tensors) {
    std::vector<std::uint64_t> offsets;
    for (std::uint64_t index = 0; index < num_tensors; ++index) {
      StoredTensor tensor;
      tensor.name = reader_.text(kMaxTensorNameBytes, [&] { return "the name of tensor " + std::to_string(index); });
      offsets.push_back(read_entry(tensor));
      result_.tensors.push_back(std::move(tensor));
    }
    const std::uint64_t data_start = (reader_.position() + alignment_ - 1) / alignment_ * alignment_;
    for (std::size_t index = 0; index < offsets.size(); ++index) {
      StoredTensor& tensor = result_.tensors[index];
      const std::uint64_t num_bytes = stored_bytes(tensor);
      const std::uint64_t size = reader_.size();
      if (data_start > size || offsets[index] > size - data_start || num_bytes > size - data_start - offsets[index]) {
        reader_.fail("tensor '" + shown_text(tensor.name) + "' takes " + std::to_string(num_bytes) + " bytes from " +
                     std::to_string(offsets[index]) + " after byte " + std::to_string(data_start) + " of a file of " +
                     std::to_string(size));
      }
      tensor.data = file_.subspan(static_cast<std::size_t>(data_start + offsets[index]),
                                  static_cast<std::size_t>(num_bytes));
    }
    index_by_name(where_, result_.tensors);  // for its check that no name appears twice
    check_extents(where_, result_.tensors);
  }

  // Fills in all but the data, and returns the data's offset.
  std::uint64_t read_entry(StoredTensor& tensor) {
    const auto what = [&] { return "the entry of tensor '" + shown_text(tensor.name) + "'"; };
    const auto fail = [&](const std::string& problem) {
      reader_.fail("tensor '" + shown_text(tensor.name) + "' " + problem);
    };
    const auto num_dimensions = reader_.scalar<std::uint32_t>(what);
    if (num_dimensions > kMaxDimensions) {
      fail("claims " + std::to_string(num_dimensions) + " dimensions; GGUF has at most " +
           std::to_string(kMaxDimensions));
    }
    for (std::uint32_t index = 0; index < num_dimensions; ++index) {
      const auto size = reader_.scalar<std::uint64_t>(what);
      if (size > kMaxElements) fail("claims the impossible size " + std::to_string(size));
      tensor.shape.push_back(static_cast<std::int64_t>(size));
    }
    // The file has the fastest dimension first.
    std::reverse(tensor.shape.begin(), tensor.shape.end());
    const auto type = reader_.scalar<std::uint32_t>(what);
    const auto offset = reader_.scalar<std::uint64_t>(what);
    if (count_elements(tensor.shape) < 0) fail("claims the impossible shape " + shown_shape(tensor.shape));
    tensor.dtype = storage_type(tensor.name, type);
    const std::int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (row % info(tensor.dtype).block_elements != 0) {
      fail("has rows of " + std::to_string(row) + " elements, which " + std::string(info(tensor.dtype).name) +
           " cannot divide into blocks");
    }
    if (offset % alignment_ != 0) {
      fail("starts at offset " + std::to_string(offset) + ", which is not aligned to " + std::to_string(alignment_));
    }
    return offset;
  }

  DType storage_type(const std::string& name, std::uint32_t type) {
    if (const std::optional<DType> known = dtype_from_gguf(type)) return *known;
    for (const auto& [number, type_name] : kOtherTypes) {
      if (number != type) continue;
      throw Error(ErrorKind::kUnsupportedFeature,
                  std::string(where_) + ": tensor '" + shown_text(name) + "' has the storage type " +
                      std::string(type_name) + " (" + std::to_string(type) +
                      "), which this engine does not read. Take the model in another quantisation.");
    }
    reader_.fail("tensor '" + shown_text(name) + "' has the storage type " + std::to_string(type) +
                 ", which is unknown or withdrawn from the format");
  }

  // At most 2^60 elements of at most 8 bytes: below 2^64.
  static std::uint64_t stored_bytes(const StoredTensor& tensor) noexcept {
    const DTypeInfo& type = info(tensor.dtype);
    return static_cast<std::uint64_t>(count_elements(tensor.shape)) / static_cast<std::uint64_t>(type.block_elements) *
           static_cast<std::uint64_t>(type.block_bytes);
  }

  std::span<const std::byte> file_;
  std::string_view where_;
  ByteReader reader_;
  GgufFile result_;
  std::uint64_t alignment_ = 32;
  std::uint64_t array_items_left_ = kMaxArrayItems;
};

}  // namespace

GgufFile parse_gguf(std::span<const std::byte> file, std::string_view where) {
  return GgufParser(file, where).parse();
}

bool is_gguf(std::span<const std::byte> file) noexcept {
  return file.size() >= kMagic.size() && std::memcmp(file.data(), kMagic.data(), kMagic.size()) == 0;
}

}  // namespace pocket
