#include "models/weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "kernels/dequantize.h"
#include "models/weight_names.h"

namespace pocket {
namespace {

constexpr std::string_view kModel = "model.";
constexpr std::string_view kHead = "lm_head.";

std::vector<std::int64_t> without_ones(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> kept;
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(kept), [](std::int64_t size) { return size != 1; });
  return kept;
}

std::string shown(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::int64_t num_tiles(std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile; }

}  // namespace

WeightReader::WeightReader(Context& context, const TensorSource& source, const ModelConfig& config,
                           Activation activation, float norm_offset, std::string ffn_norm)
    : context_(context),
      source_(source),
      activation_(activation),
      norm_offset_(source.format() == FileFormat::kGguf ? 0.0f : norm_offset),
      ffn_norm_(std::move(ffn_norm)),
      prefix_(kModel),
      fp8_tile_(config.fp8_tile),
      tied_head_(config.tied_head) {
  if (source.format() == FileFormat::kGguf) return;
  // Text models, their multimodal wrappers in the newer and the older spelling, and saves of the bare trunk.
  for (const char* prefix : {"model.", "model.language_model.", "language_model.model.", ""}) {
    if (source.find(std::string(prefix) + "embed_tokens.weight") == nullptr) continue;
    prefix_ = prefix;
    break;
  }
  if (source.find("lm_head.weight") == nullptr && source.find("language_model.lm_head.weight") != nullptr) {
    head_prefix_ = "language_model.";
  }
}

std::string WeightReader::stored_name(std::string_view name) const {
  if (source_.format() == FileFormat::kGguf) return gguf_name(name, ffn_norm_);
  if (name.starts_with(kHead)) return head_prefix_ + std::string(name);
  return prefix_ + std::string(name.substr(kModel.size()));
}

bool WeightReader::has(std::string_view name) const { return source_.find(stored_name(name)) != nullptr; }

const StoredTensor& WeightReader::find(std::string_view name, std::span<const std::int64_t> shape) {
  const std::string stored = stored_name(name);
  const StoredTensor* tensor = source_.find(stored);
  if (tensor == nullptr) {
    throw Error(ErrorKind::kCheckpoint, "The checkpoint has no tensor \"" + stored +
                                            "\": it is incomplete, or of another family than its configuration says.");
  }
  if (without_ones(tensor->shape) != without_ones(shape)) {
    throw Error(ErrorKind::kCheckpoint, "Tensor \"" + stored + "\" has shape " + shown(tensor->shape) +
                                            ", but the configuration asks for " + shown(shape) + ".");
  }
  read_.insert(tensor);
  return *tensor;
}

std::unique_ptr<const Matrix> WeightReader::matrix(std::span<const WeightRows> parts, std::int64_t num_columns,
                                                   double share) {
  std::vector<MatrixPart> stored;
  stored.reserve(parts.size());
  for (const WeightRows& rows : parts) stored.push_back(part(rows, num_columns));
  std::unique_ptr<const Matrix> packed = pack_matrix(context_, stored, num_columns, activation_);
  packed_bytes_ += packed->num_bytes();
  bytes_per_token_ += static_cast<double>(packed->num_bytes()) * share;
  for (const WeightRows& rows : parts) {
    // The experts of one tensor are packed one after another.
    if (rows.expert >= 0 && rows.expert + 1 < rows.num_experts) continue;
    const std::string name = stored_name(rows.name);
    source_.release(*source_.find(name));
    scales_.erase(name);
  }
  return packed;
}

MatrixPart WeightReader::part(const WeightRows& rows, std::int64_t num_columns) {
  const std::int64_t stored_rows = rows.source_rows.empty() ? rows.num_rows : rows.stored_rows;
  const bool stacked = rows.expert >= 0;
  const std::int64_t shape[] = {rows.num_experts, stored_rows, num_columns};
  const StoredTensor& tensor = find(rows.name, std::span(shape).subspan(stacked ? 0 : 1));
  if (num_columns % info(tensor.dtype).block_elements != 0) {
    throw Error(ErrorKind::kCheckpoint, "Tensor \"" + tensor.name + "\" has rows of " + std::to_string(num_columns) +
                                            " elements, not a multiple of the blocks of " +
                                            std::string(info(tensor.dtype).name) + ". Convert the model again.");
  }
  const std::size_t expert_bytes = row_bytes(tensor.dtype, num_columns) * static_cast<std::size_t>(stored_rows);
  MatrixPart part;
  part.dtype = tensor.dtype;
  part.data = tensor.data.data() + (stacked ? expert_bytes * static_cast<std::size_t>(rows.expert) : 0);
  part.num_rows = rows.num_rows;
  if (!rows.source_rows.empty()) part.source_rows = rows.source_rows.data();
  if (tensor.dtype == DType::kF8E4M3) {
    part.scales = fp8_scales(tensor.name, rows, num_columns);
    part.scale_rows = fp8_tile_->rows;
    part.scale_columns = fp8_tile_->columns;
  }
  return part;
}

const float* WeightReader::fp8_scales(const std::string& name, const WeightRows& rows, std::int64_t num_columns) {
  if (!fp8_tile_) {
    throw Error(ErrorKind::kCheckpoint,
                "Tensor \"" + name + "\" is F8_E4M3, but config.json has no quantization_config. Fetch it again.",
                "quantization_config");
  }
  const std::int64_t stored_rows = rows.source_rows.empty() ? rows.num_rows : rows.stored_rows;
  const std::int64_t tile_rows = num_tiles(stored_rows, fp8_tile_->rows);
  const std::int64_t tile_columns = num_tiles(num_columns, fp8_tile_->columns);
  const std::int64_t num_experts = std::max<std::int64_t>(rows.num_experts, 1);
  auto [entry, is_new] = scales_.try_emplace(name);
  if (is_new) {
    // A module's weight is "<name>.weight"; a fused stack of experts is a parameter without that ending.
    const std::string scale_name = rows.name + "_scale_inv";
    const std::int64_t shape[] = {num_experts, tile_rows, tile_columns};
    const StoredTensor& tensor = find(scale_name, shape);
    const std::int64_t count = num_experts * tile_rows * tile_columns;
    entry->second = Buffer(static_cast<std::size_t>(count) * sizeof(float));
    read_floats(tensor, count, entry->second.as<float>());
  }
  return entry->second.as<float>() + std::max<std::int64_t>(rows.expert, 0) * tile_rows * tile_columns;
}

void WeightReader::read_floats(const StoredTensor& tensor, std::int64_t count, float* out) {
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 && tensor.dtype != DType::kBF16) {
    throw Error(ErrorKind::kUnsupportedFeature, "Tensor \"" + tensor.name + "\" is of type " +
                                                    std::string(info(tensor.dtype).name) +
                                                    "; vectors and scales are read from F32, F16 and BF16.");
  }
  dequantize_row(tensor.dtype, tensor.data.data(), count, out);
  source_.release(tensor);
  const std::size_t num_bytes = static_cast<std::size_t>(count) * sizeof(float);
  packed_bytes_ += num_bytes;
  bytes_per_token_ += static_cast<double>(num_bytes);
}

Buffer WeightReader::host_vector(std::span<const WeightSegment> segments) {
  std::int64_t total = 0;
  for (const WeightSegment& segment : segments) total += segment.size;
  Buffer values(static_cast<std::size_t>(total) * sizeof(float));
  float* out = values.as<float>();
  for (const WeightSegment& segment : segments) {
    const std::int64_t shape[] = {segment.size};
    read_floats(find(segment.name, shape), segment.size, out);
    out += segment.size;
  }
  return values;
}

DeviceBuffer WeightReader::on_device(const Buffer& values) const {
  return DeviceBuffer::copied(context_.device, context_.stream.get(), {values.data(), values.size()});
}

DeviceBuffer WeightReader::vector(std::span<const WeightSegment> segments) { return on_device(host_vector(segments)); }

DeviceBuffer WeightReader::vector(const std::string& name, std::int64_t size,
                                  const std::function<float(float)>& change) {
  const WeightSegment segment{name, size};
  Buffer values = host_vector({&segment, 1});
  if (change) std::transform(values.as<float>(), values.as<float>() + size, values.as<float>(), change);
  return on_device(values);
}

DeviceBuffer WeightReader::table_of_floats(const std::string& name, std::int64_t num_rows, std::int64_t num_columns) {
  const std::int64_t shape[] = {num_rows, num_columns};
  Buffer values(static_cast<std::size_t>(num_rows * num_columns) * sizeof(float));
  read_floats(find(name, shape), num_rows * num_columns, values.as<float>());
  return on_device(values);
}

DeviceBuffer WeightReader::norm(const std::string& name, std::int64_t size) {
  return vector(name, size, [this](float weight) { return weight + norm_offset_; });
}

const StoredTensor& WeightReader::table(const std::string& name, std::int64_t num_rows, std::int64_t num_columns) {
  const std::int64_t shape[] = {num_rows, num_columns};
  const StoredTensor& tensor = find(name, shape);
  const bool integral = tensor.dtype == DType::kI8 || tensor.dtype == DType::kU8 || tensor.dtype == DType::kI32 ||
                        tensor.dtype == DType::kI64;
  if (integral || tensor.dtype == DType::kF8E4M3 || tensor.dtype == DType::kF8E8M0 ||
      num_columns % info(tensor.dtype).block_elements != 0) {
    throw Error(ErrorKind::kUnsupportedFeature, "Tensor \"" + tensor.name + "\" cannot be looked up by row in type " +
                                                    std::string(info(tensor.dtype).name) + ".");
  }
  return tensor;
}

std::vector<float> WeightReader::rope_divisors(std::int64_t size) {
  constexpr std::string_view kName = "rope_freqs.weight";
  if (source_.format() != FileFormat::kGguf || source_.find(kName) == nullptr) return {};
  const WeightSegment segment{std::string(kName), size};
  const Buffer values = host_vector({&segment, 1});
  return {values.as<float>(), values.as<float>() + size};
}

void WeightReader::check_all_read(std::int64_t num_layers) const {
  std::int64_t num_unread = 0;
  std::string examples;
  const std::string head = tied_head_ ? stored_name("lm_head.weight") : std::string();
  for (const StoredTensor& tensor : source_.tensors()) {
    if (read_.contains(&tensor) || is_beside_text_model(tensor.name) || layer_of(tensor.name) >= num_layers) continue;
    if (tensor.name == head) continue;  // a copy of the embedding
    if (++num_unread <= 3) examples += (examples.empty() ? "" : ", ") + tensor.name;
  }
  if (num_unread == 0) return;
  throw Error(ErrorKind::kCheckpoint, "The checkpoint has " + std::to_string(num_unread) +
                                          " tensors that this model has no place for (" + examples +
                                          "): its family is not fully supported.");
}

}  // namespace pocket
