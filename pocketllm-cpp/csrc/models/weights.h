// Finds a checkpoint's tensors, checks their shapes and packs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/buffer.h"
#include "core/device.h"
#include "core/tensor_source.h"
#include "kernels/linear.h"
#include "models/config.h"

namespace pocket {

// Rows of one stored tensor, by its Hugging Face name, that become rows of a matrix.
struct WeightRows {
  std::string name;
  std::int64_t num_rows = 0;
  // With `stored_rows` in the tensor, row i is its row source_rows[i]. Empty: the tensor's own rows, all of them.
  std::span<const std::int32_t> source_rows = {};
  std::int64_t stored_rows = 0;
  // The tensor is [num_experts, rows, columns], and these are rows of one expert.
  std::int64_t expert = -1;
  std::int64_t num_experts = 0;
};

struct WeightSegment {
  std::string name;
  std::int64_t size = 0;
};

// Names are Hugging Face's, beginning with "model." or "lm_head." whatever the file calls them. Every method throws
// Error(kCheckpoint) for a tensor that is missing or has another shape; sizes of one in a shape are not compared.
class WeightReader {
 public:
  // `norm_offset`: what the family's norms lack in Hugging Face's files (1 for zero-centred ones; GGUF has it added).
  WeightReader(Context& context, const TensorSource& source, const ModelConfig& config, Activation activation,
               float norm_offset, std::string ffn_norm);

  FileFormat format() const noexcept { return source_.format(); }
  Activation activation() const noexcept { return activation_; }
  bool has(std::string_view name) const;

  // The parts stacked to [sum of their rows, num_columns]. `share`: how much of it one token reads, on average.
  std::unique_ptr<const Matrix> matrix(std::span<const WeightRows> parts, std::int64_t num_columns, double share = 1.0);
  std::unique_ptr<const Matrix> matrix(std::initializer_list<WeightRows> parts, std::int64_t num_columns,
                                       double share = 1.0) {
    return matrix(std::span(parts.begin(), parts.size()), num_columns, share);
  }
  // The segments one after another, as floats in device memory.
  DeviceBuffer vector(std::span<const WeightSegment> segments);
  // `change` is made to each value on the way there.
  DeviceBuffer vector(const std::string& name, std::int64_t size, const std::function<float(float)>& change = nullptr);
  DeviceBuffer norm(const std::string& name, std::int64_t size);
  // A small tensor [num_rows, num_columns] as floats.
  DeviceBuffer table_of_floats(const std::string& name, std::int64_t num_rows, std::int64_t num_columns);
  // The tensor as stored, in host memory, for look-ups by row; it stays there as long as the model lives.
  const StoredTensor& table(const std::string& name, std::int64_t num_rows, std::int64_t num_columns);
  // A GGUF's rope_freqs.weight, as plain numbers; empty when there is none.
  std::vector<float> rope_divisors(std::int64_t size);

  // Refuses a checkpoint with tensors nobody asked for: its model is not the one that was built. Layers from
  // `num_layers` on do not count.
  void check_all_read(std::int64_t num_layers) const;

  std::size_t packed_bytes() const noexcept { return packed_bytes_; }
  std::size_t bytes_per_token() const noexcept { return static_cast<std::size_t>(bytes_per_token_); }

 private:
  std::string stored_name(std::string_view name) const;
  const StoredTensor& find(std::string_view name, std::span<const std::int64_t> shape);
  // Converts `count` elements of the tensor to floats in host memory.
  void read_floats(const StoredTensor& tensor, std::int64_t count, float* out);
  Buffer host_vector(std::span<const WeightSegment> segments);
  DeviceBuffer on_device(const Buffer& values) const;
  MatrixPart part(const WeightRows& rows, std::int64_t num_columns);
  const float* fp8_scales(const std::string& name, const WeightRows& rows, std::int64_t num_columns);

  Context& context_;
  const TensorSource& source_;
  Activation activation_;
  float norm_offset_;
  std::string ffn_norm_;
  std::string prefix_;  // what the file has for "model."
  std::string head_prefix_;
  std::optional<ScaleTile> fp8_tile_;
  bool tied_head_;
  std::map<std::string, Buffer> scales_;  // of the tensors being packed, in host memory
  std::set<const StoredTensor*> read_;
  std::size_t packed_bytes_ = 0;
  double bytes_per_token_ = 0;
};

}  // namespace pocket
