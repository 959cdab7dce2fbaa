#include "kernels/cpu/attention/kv_cache.h"

#include "core/buffer.h"
#include "core/half.h"

namespace pocket::cpu {
namespace {

constexpr std::int64_t kVector = 16;

std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

float as_float(KvType type, const std::byte* elements, std::int64_t index, float scale) noexcept {
  switch (type) {
    case KvType::kF32: return reinterpret_cast<const float*>(elements)[index];
    case KvType::kF16: return half_to_float(reinterpret_cast<const std::uint16_t*>(elements)[index]);
    case KvType::kQ8_0: break;
  }
  return scale * static_cast<float>(reinterpret_cast<const std::int8_t*>(elements)[index]);
}

}  // namespace

KvLayout::KvLayout(const KvShape& shape) noexcept : padded_dim(round_up(shape.head_dim, kVector)) {
  const std::int64_t bytes_per_dim = kBlockSize * element_bytes(shape.type);
  values_offset = round_up(shape.head_dim * bytes_per_dim, Buffer::kAlignment);
  scales_offset = values_offset + padded_dim * bytes_per_dim;
  const std::int64_t scales_bytes =
      shape.type == KvType::kQ8_0 ? 2 * kBlockSize * static_cast<std::int64_t>(sizeof(float)) : 0;
  block_bytes = scales_offset + scales_bytes;
  block_stride = block_bytes * shape.num_kv_heads * shape.num_layers;
}

std::size_t block_bytes(const KvShape& shape) {
  return static_cast<std::size_t>(KvLayout(shape).block_stride);
}

void load_kv(Context& context, const KvCache& cache, std::int32_t layer, std::int32_t block, std::int32_t position,
             std::span<float> k, std::span<float> v) {
  check_device(context, cache.device(), "A key-value cache");
  const KvView<const std::byte> view = view_of(cache);
  const KvShape& shape = view.shape;
  std::size_t at = 0;
  for (std::int32_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
    const std::byte* place = view.head(layer, kv_head) + block * view.layout.block_stride;
    float key_scale = 1.0f, value_scale = 1.0f;
    if (shape.type == KvType::kQ8_0) {
      const float* scales = reinterpret_cast<const float*>(place + view.layout.scales_offset);
      key_scale = scales[position];
      value_scale = scales[kBlockSize + position];
    }
    for (std::int64_t dim = 0; dim < shape.head_dim; ++dim, ++at) {
      k[at] = as_float(shape.type, place, dim * kBlockSize + position, key_scale);
      v[at] = as_float(shape.type, place + view.layout.values_offset, position * view.layout.padded_dim + dim,
                       value_scale);
    }
  }
}

}  // namespace pocket::cpu
