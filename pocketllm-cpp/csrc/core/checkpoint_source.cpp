#include "core/checkpoint_source.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/gguf.h"
#include "core/gguf_split.h"
#include "core/mapped_file.h"
#include "core/safetensors.h"
#include "core/tensor_extents.h"
#include "core/utf8.h"

namespace pocket {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::size_t kMaxShards = 4096;

[[noreturn]] void fail(const std::string& where, const std::string& problem) {
  throw Error(ErrorKind::kCheckpoint, where + ": " + problem);
}

class MappedTensors final : public TensorSource {
 public:
  MappedTensors(FileFormat format, const std::string& where, std::vector<MappedFile> files,
                std::vector<StoredTensor> tensors)
      : format_(format), files_(std::move(files)), tensors_(std::move(tensors)) {
    if (tensors_.size() > kMaxTensors) fail(where, "has more than " + std::to_string(kMaxTensors) + " tensors.");
    by_name_ = index_by_name(where, tensors_);
  }

  FileFormat format() const noexcept override { return format_; }
  const StoredTensor* find(std::string_view name) const noexcept override {
    return find_by_name(tensors_, by_name_, name);
  }
  std::span<const StoredTensor> tensors() const noexcept override { return tensors_; }
  void release(const StoredTensor& tensor) const noexcept override { MappedFile::release(tensor.data); }

 private:
  FileFormat format_;
  std::vector<MappedFile> files_;
  std::vector<StoredTensor> tensors_;
  std::vector<std::uint32_t> by_name_;
};

MappedFile map_for_loading(const std::string& path) {
  MappedFile file(path);
  file.expect_sequential_reads();
  return file;
}

void append(std::vector<StoredTensor>& all, std::vector<StoredTensor> more) {
  std::move(more.begin(), more.end(), std::back_inserter(all));
}

std::unique_ptr<TensorSource> open_gguf(const std::string& path) {
  const std::vector<std::string> paths = split_parts(path);
  std::vector<MappedFile> files;
  std::vector<GgufFile> parts;
  for (const std::string& part : paths) {
    files.push_back(map_for_loading(part));
    parts.push_back(parse_gguf(files.back().bytes(), part));
  }
  check_split(parts, paths);
  std::vector<StoredTensor> tensors;
  for (GgufFile& part : parts) append(tensors, std::move(part.tensors));
  return std::make_unique<MappedTensors>(FileFormat::kGguf, path, std::move(files), std::move(tensors));
}

std::unique_ptr<TensorSource> open_safetensors(const std::string& path) {
  std::vector<MappedFile> files;
  files.push_back(map_for_loading(path));
  std::vector<StoredTensor> tensors = parse_safetensors(files.back().bytes(), path);
  return std::make_unique<MappedTensors>(FileFormat::kSafetensors, path, std::move(files), std::move(tensors));
}

// Where the index names a tensor's shard, that one counts and a copy elsewhere does not.
std::unique_ptr<TensorSource> open_shards(const fs::path& folder) {
  const std::string index = (folder / kIndexName).string();
  std::vector<ShardEntry> entries;
  {
    const MappedFile file(index);
    const std::span<const std::byte> bytes = file.bytes();
    entries = parse_shard_index({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, index);
  }
  std::map<std::string, std::string, std::less<>> shard_of;
  std::set<std::string> shards;
  for (ShardEntry& entry : entries) {
    shards.insert(entry.file);
    shard_of.emplace(std::move(entry.tensor), std::move(entry.file));
  }
  if (shards.size() > kMaxShards) {
    fail(index, "names " + std::to_string(shards.size()) + " shards, more than the " + std::to_string(kMaxShards) +
                    " allowed.");
  }
  std::vector<MappedFile> files;
  std::vector<StoredTensor> tensors;
  std::size_t num_placed = 0;
  for (const std::string& shard : shards) {
    const std::string path = (folder / shard).string();
    files.push_back(map_for_loading(path));
    for (StoredTensor& tensor : parse_safetensors(files.back().bytes(), path)) {
      const auto place = shard_of.find(tensor.name);
      if (place != shard_of.end() && place->second != shard) continue;
      num_placed += place != shard_of.end() ? 1 : 0;
      tensors.push_back(std::move(tensor));
    }
    if (tensors.size() > kMaxTensors) fail(index, "has more than " + std::to_string(kMaxTensors) + " tensors.");
  }
  auto source = std::make_unique<MappedTensors>(FileFormat::kSafetensors, index, std::move(files), std::move(tensors));
  for (const auto& [name, shard] : shard_of) {
    if (num_placed == shard_of.size()) break;
    if (source->find(name) == nullptr) {
      fail((folder / shard).string(), "the index places " + std::to_string(shard_of.size() - num_placed) +
                                          " tensors where they are not, '" + shown_text(name) +
                                          "' among them. Fetch the checkpoint again.");
    }
  }
  return source;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kMaxListed = 8;
  std::string out;
  for (std::size_t index = 0; index < std::min(names.size(), kMaxListed); ++index) {
    out += (index > 0 ? ", " : "") + shown_text(names[index]);
  }
  return out + (names.size() > kMaxListed ? " and " + std::to_string(names.size() - kMaxListed) + " more" : "");
}

std::unique_ptr<TensorSource> open_folder(const fs::path& folder) {
  std::vector<std::string> tensor_files;
  std::vector<std::string> models;
  bool has_index = false;
  bool has_single = false;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    has_index = has_index || name == kIndexName;
    has_single = has_single || name == kSingleName;
    if (name.ends_with(".safetensors")) tensor_files.push_back(name);
    if (name.ends_with(".gguf")) models.push_back(name);
  }
  if (error) fail(folder.string(), "cannot be listed (" + error.message() + "). Check its permissions.");
  if (has_single) return open_safetensors((folder / kSingleName).string());
  if (has_index) return open_shards(folder);
  std::sort(tensor_files.begin(), tensor_files.end());
  std::sort(models.begin(), models.end());
  if (tensor_files.size() > 1) {
    fail(folder.string(), "holds several safetensors files (" + listed(tensor_files) + ") and no " +
                              std::string(kIndexName) + ". Fetch the index too, or give the path of one file.");
  }
  if (!tensor_files.empty()) return open_safetensors((folder / tensor_files.front()).string());
  if (models.empty()) {
    fail(folder.string(), "holds no weights: there is no model.safetensors, no index of one and no .gguf file in it.");
  }
  std::set<std::vector<std::string>> groups;
  for (const std::string& model : models) groups.insert(split_parts(model));
  if (groups.size() > 1) {
    fail(folder.string(), "holds several GGUF models (" + listed(models) + "). Give the path of one of them.");
  }
  return open_gguf((folder / models.front()).string());
}

}  // namespace

std::unique_ptr<TensorSource> open_tensor_source(const std::string& path) {
  if (path.find('\0') != std::string::npos) fail("a path with a null character", "cannot be opened. Check the path.");
  std::error_code ignored;  // a path that cannot be looked at cannot be opened either, and says why there
  if (fs::is_directory(path, ignored)) return open_folder(path);
  const bool gguf = is_gguf(MappedFile(path).bytes());
  if (gguf) return open_gguf(path);
  if (path.ends_with(".safetensors")) return open_safetensors(path);
  fail(path, "neither a GGUF file nor a .safetensors file. Give one of those, or the folder that holds them.");
}

}  // namespace pocket
