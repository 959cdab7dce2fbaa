// Checkpoint files as bytes, honest or with chosen faults, for the tests and fuzzers of the readers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace checkpoint_bytes {

template <class T>
std::string packed(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}

// In an allocation of exactly their size, so that a sanitizer sees a read past the end.
inline std::vector<std::byte> exact(std::string_view bytes) {
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  return {data, data + bytes.size()};
}

inline std::string safetensors(std::string_view header, std::string_view data) {
  return packed<std::uint64_t>(header.size()) + std::string(header) + std::string(data);
}

inline std::string gguf_text(std::string_view text) { return packed<std::uint64_t>(text.size()) + std::string(text); }

inline constexpr std::uint32_t kU8 = 0, kU16 = 2, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9,
                               kU64 = 10;

// A GGUF file, put together from what is added to it.
struct Gguf {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;  // of the data; write the key too for another than 32
  std::uint64_t num_keys = 0;
  std::uint64_t num_tensors = 0;
  std::string keys;
  std::string entries;
  std::string data;

  Gguf& key(std::string_view name, std::uint32_t type, std::string_view payload) {
    keys += gguf_text(name) + packed(type) + std::string(payload);
    ++num_keys;
    return *this;
  }
  Gguf& text(std::string_view name, std::string_view value) { return key(name, kString, gguf_text(value)); }

  // `sizes` as the file has them, the fastest first; the offset is where the data is added.
  Gguf& tensor(std::string_view name, const std::vector<std::uint64_t>& sizes, std::uint32_t type,
               std::string_view bytes) {
    const std::uint64_t offset = data.size();
    data += std::string(bytes) + std::string((alignment - bytes.size() % alignment) % alignment, '\0');
    return entry(name, sizes, type, offset);
  }
  Gguf& entry(std::string_view name, const std::vector<std::uint64_t>& sizes, std::uint32_t type,
              std::uint64_t offset) {
    entries += gguf_text(name) + packed(static_cast<std::uint32_t>(sizes.size()));
    for (const std::uint64_t size : sizes) entries += packed(size);
    entries += packed(type) + packed(offset);
    ++num_tensors;
    return *this;
  }

  std::string bytes() const {
    std::string out = magic + packed(version) + packed(num_tensors) + packed(num_keys) + keys + entries;
    out += std::string((alignment - out.size() % alignment) % alignment, '\0');
    return out + data;
  }
};

}  // namespace checkpoint_bytes
