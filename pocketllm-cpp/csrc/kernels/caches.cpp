// What sequences keep on a device between steps: blocks and slots of plain device memory.
#include <string>

#include "core/error.h"
#include "kernels/attention.h"
#include "kernels/delta_net.h"

namespace pocket {
namespace {

void require_positive(std::int64_t value, const char* name) {
  if (value > 0) return;
  throw Error(ErrorKind::kConfiguration,
              std::string("The key-value cache's ") + name + " is " + std::to_string(value) + "; it must be positive.",
              name);
}

const KvShape& checked(const KvShape& shape) {
  require_positive(shape.num_layers, "num_layers");
  require_positive(shape.num_kv_heads, "num_kv_heads");
  require_positive(shape.head_dim, "head_dim");
  require_positive(shape.num_blocks, "num_blocks");
  return shape;
}

const DeltaNetShape& checked(const DeltaNetShape& shape) {
  const bool positive = shape.num_layers > 0 && shape.num_key_heads > 0 && shape.num_value_heads > 0 &&
                        shape.key_dim > 0 && shape.value_dim > 0 && shape.kernel_size > 0;
  if (!positive) throw Error(ErrorKind::kConfiguration, "Every size of a DeltaNet state must be positive.");
  if (shape.num_value_heads % shape.num_key_heads != 0) {
    throw Error(ErrorKind::kConfiguration,
                "linear_num_value_heads is " + std::to_string(shape.num_value_heads) +
                    "; it must be a multiple of linear_num_key_heads, " + std::to_string(shape.num_key_heads) + ".");
  }
  return shape;
}

}  // namespace

KvCache::KvCache(Context& context, const KvShape& shape)
    : shape_(checked(shape)),
      block_bytes_(kv_block_bytes(context, shape)),
      data_(context.device, block_bytes_ * static_cast<std::size_t>(shape.num_blocks)) {}

void KvCache::copy_block(Context& context, std::int32_t from, std::int32_t to) {
  check_device(context, device(), "A key-value cache");
  std::byte* first = data_.data();
  context.device.copy(context.stream.get(), first + static_cast<std::size_t>(from) * block_bytes_,
                      first + static_cast<std::size_t>(to) * block_bytes_, block_bytes_);
}

RecurrentStates::RecurrentStates(Context& context, std::size_t slot_bytes, std::int32_t num_slots)
    : slot_bytes_(slot_bytes) {
  if (slot_bytes == 0 || num_slots <= 0) {
    throw Error(ErrorKind::kConfiguration, "Recurrent states have " + std::to_string(num_slots) + " slots of " +
                                               std::to_string(slot_bytes) + " bytes; both must be positive.");
  }
  data_ = DeviceBuffer(context.device, slot_bytes * static_cast<std::size_t>(num_slots));
}

void RecurrentStates::clear(Context& context, std::int32_t index) {
  check_device(context, device(), "A recurrent state");
  context.device.zero(context.stream.get(), slot(index), slot_bytes_);
}

DeltaNetStates::DeltaNetStates(const Context& context, RecurrentStates& slots, const DeltaNetShape& shape)
    : slots_(slots), shape_(checked(shape)) {
  const std::size_t num_bytes = delta_net_slot_bytes(context, shape);
  if (slots.slot_bytes() == num_bytes) return;
  throw Error(ErrorKind::kConfiguration, "A slot of this DeltaNet's states takes " + std::to_string(num_bytes) +
                                             " bytes, and the slots given have " +
                                             std::to_string(slots.slot_bytes()) + ".");
}

}  // namespace pocket
