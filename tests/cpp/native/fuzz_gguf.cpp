// Mutated GGUF files: each parses or ends in one Error, in memory bounded by the file's size.
#include <sys/mman.h>

#include "checkpoint_bytes.h"
#include "core/checkpoint_source.h"
#include "core/dtype.h"
#include "core/gguf.h"
#include "core/utf8.h"
#include "fuzz_input.h"

namespace {

using checkpoint_bytes::Gguf;
using checkpoint_bytes::gguf_text;
using checkpoint_bytes::packed;

std::string array_of(std::uint32_t type, std::uint64_t length, const std::string& items) {
  return packed(type) + packed(length) + items;
}

Gguf with_keys() {
  using namespace checkpoint_bytes;
  Gguf file;
  file.text("general.architecture", "llama").key("llama.block_count", kU32, packed(2u));
  file.key("flag", kBool, packed<std::uint8_t>(1)).key("wide", kU64, packed<std::uint64_t>(1));
  file.text("long", std::string(3000, 'x'));
  file.key("texts", kArray, array_of(kString, 3, gguf_text("a") + gguf_text("") + gguf_text("ccc")));
  file.key("deep", kArray, array_of(kArray, 2, array_of(kArray, 1, array_of(kI32, 2, packed(1) + packed(2))) +
                                                   array_of(kU8, 0, "")));
  return file;
}

// Little data, so that most changes hit the header.
std::vector<std::string> seeds() {
  using namespace checkpoint_bytes;
  Gguf plain = with_keys();
  plain.tensor("token_embd.weight", {32, 2}, 8, std::string(68, 'e')).tensor("norm", {4}, 0, std::string(16, 'n'));
  Gguf older = with_keys();
  older.version = 2;
  older.tensor("w", {32, 1}, 3, std::string(20, 'w')).tensor("s", {}, 0, "0123").tensor("z", {0}, 0, "");
  Gguf aligned;
  aligned.alignment = 64;
  aligned.key("general.alignment", kU32, packed(64u)).tensor("w", {256}, 12, std::string(144, 'k'));
  Gguf loose;
  loose.alignment = 1;
  loose.key("general.alignment", kU32, packed(1u)).tensor("w", {3}, 24, "abc").tensor("v", {2}, 24, "de");
  Gguf part = with_keys();
  part.key("split.no", kU16, packed<std::uint16_t>(0)).key("split.count", kU16, packed<std::uint16_t>(1));
  part.key("split.tensors.count", kI32, packed(1)).tensor("w", {2, 2, 1, 2}, 30, std::string(16, 'b'));
  return {plain.bytes(), older.bytes(), aligned.bytes(), loose.bytes(), part.bytes(), Gguf().bytes()};
}

void check_tensors(std::span<const pocket::StoredTensor> tensors) {
  for (const pocket::StoredTensor& tensor : tensors) {
    fuzz::touch(tensor.data);
    std::int64_t num_elements = 1;
    for (const std::int64_t size : tensor.shape) num_elements *= size;
    // Rows are whole blocks, so all rows together take what one long row would.
    if (pocket::row_bytes(tensor.dtype, num_elements) != tensor.data.size()) {
      throw std::logic_error("shape and bytes disagree");
    }
    if (!pocket::is_utf8(tensor.name)) throw std::logic_error("a name that is not UTF-8");
  }
}

void parse(const std::string& bytes) {
  const std::vector<std::byte> file = checkpoint_bytes::exact(bytes);
  check_tensors(pocket::parse_gguf(file, "m.gguf").tensors);
}

// The whole way of a file, mapped from memory that has a path.
void open(const std::string& bytes) {
  const int file = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (file < 0 || ::write(file, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    throw std::runtime_error("no memory file");
  }
  struct Close {
    int file;
    ~Close() { ::close(file); }
  } const closing{file};
  const auto source = pocket::open_tensor_source("/proc/self/fd/" + std::to_string(file));
  check_tensors(source->tensors());
  for (const pocket::StoredTensor& tensor : source->tensors()) {
    if (source->find(tensor.name) != &tensor) throw std::logic_error("a tensor is not found by its name");
    source->release(tensor);
    fuzz::touch(tensor.data);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::run(argc, argv,
                   {{.name = "gguf", .seeds = seeds(), .pieces = {}, .framed = false, .exercise = parse},
                    {.name = "gguf file", .seeds = seeds(), .pieces = {}, .framed = false, .exercise = open}});
}
