#include "kernels/cpu/attention/kv_cache.h"

#include <cstring>
#include <string>

#include "core/error.h"
#include "core/half.h"

namespace pocket {
namespace {

constexpr std::int64_t kVector = 16;

std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

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

}  // namespace

KvLayout::KvLayout(const KvShape& shape) noexcept : padded_dim(round_up(shape.head_dim, kVector)) {
  const std::int64_t bytes_per_dim = KvShape::kBlockSize * element_bytes(shape.type);
  values_offset = round_up(shape.head_dim * bytes_per_dim, Buffer::kAlignment);
  scales_offset = values_offset + padded_dim * bytes_per_dim;
  const std::int64_t scales_bytes =
      shape.type == KvType::kQ8_0 ? 2 * KvShape::kBlockSize * static_cast<std::int64_t>(sizeof(float)) : 0;
  block_bytes = scales_offset + scales_bytes;
  block_stride = block_bytes * shape.num_kv_heads * shape.num_layers;
}

KvCache::State::State(const KvShape& cache_shape)
    : shape(checked(cache_shape)),
      layout(shape),
      data(static_cast<std::size_t>(layout.block_stride) * shape.num_blocks) {}

double KvCache::State::element(const std::byte* block, std::int64_t offset, std::int64_t index,
                               std::int64_t scale) const noexcept {
  const std::byte* elements = block + offset;
  switch (shape.type) {
    case KvType::kF32: return reinterpret_cast<const float*>(elements)[index];
    case KvType::kF16: return half_to_float(reinterpret_cast<const std::uint16_t*>(elements)[index]);
    case KvType::kQ8_0: break;
  }
  const float* scales = reinterpret_cast<const float*>(block + layout.scales_offset);
  return double{scales[scale]} * reinterpret_cast<const std::int8_t*>(elements)[index];
}

double KvCache::State::key(std::int32_t layer, std::int32_t kv_head, std::int32_t block, std::int32_t slot,
                           std::int32_t dim) const {
  const std::byte* place = head(layer, kv_head) + block * layout.block_stride;
  return element(place, 0, std::int64_t{dim} * KvShape::kBlockSize + slot, slot);
}

double KvCache::State::value(std::int32_t layer, std::int32_t kv_head, std::int32_t block, std::int32_t slot,
                             std::int32_t dim) const {
  const std::byte* place = head(layer, kv_head) + block * layout.block_stride;
  return element(place, layout.values_offset, slot * layout.padded_dim + dim, KvShape::kBlockSize + slot);
}

KvCache::KvCache(const KvShape& shape) : state_(std::make_unique<State>(shape)) {}
KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;

const KvShape& KvCache::shape() const noexcept { return state_->shape; }

std::size_t KvCache::num_bytes() const noexcept { return state_->data.size(); }

std::size_t KvCache::block_bytes(const KvShape& shape) noexcept {
  return static_cast<std::size_t>(KvLayout(shape).block_stride);
}

void KvCache::copy_block(std::int32_t from, std::int32_t to) noexcept {
  const std::int64_t num_bytes = state_->layout.block_stride;
  std::byte* first = state_->data.data();
  std::memcpy(first + to * num_bytes, first + from * num_bytes, static_cast<std::size_t>(num_bytes));
}

}  // namespace pocket
