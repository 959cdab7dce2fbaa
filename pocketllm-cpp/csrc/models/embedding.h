// Token embeddings, read row by row from the checkpoint's own storage.
#pragma once

#include <cstdint>
#include <span>

#include "core/device.h"
#include "core/tensor_source.h"
#include "kernels/context.h"

namespace pocket {

class Embedding {
 public:
  // `table` [vocab_size, hidden_size] must outlive this; every looked-up row is multiplied by `scale`.
  Embedding(Context& context, const StoredTensor& table, float scale)
      : table_(table), rows_(DeviceBuffer::mapped(context.device, context.stream.get(), table.data)), scale_(scale) {}

  // out [tokens.size(), hidden_size]. Throws Error(kConfiguration) for a token outside the vocabulary.
  void look_up(Context& context, std::span<const std::int32_t> tokens, float* out);

 private:
  const StoredTensor& table_;
  DeviceBuffer rows_;  // the table as the device reads it
  DeviceBuffer ids_;
  float scale_;
};

}  // namespace pocket
