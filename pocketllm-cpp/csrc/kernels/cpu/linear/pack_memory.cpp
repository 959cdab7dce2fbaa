#include "kernels/cpu/linear/pack_memory.h"

#include <mutex>

namespace pocket::cpu {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{32} << 20;
constexpr std::size_t kOwnPieceFrom = kPieceBytes / 4;

struct Arena {
  std::mutex mutex;
  std::weak_ptr<Buffer> piece;  // the one being cut; its matrices keep it alive
  std::size_t used = 0;
};

Arena& arena() {
  static Arena only;
  return only;
}

}  // namespace

PackedMemory packed_memory(std::size_t num_bytes) {
  if (num_bytes >= kOwnPieceFrom) {
    auto piece = std::make_shared<Buffer>(num_bytes);
    std::byte* data = piece->data();
    return {std::move(piece), data, num_bytes};
  }
  const std::size_t rounded = (num_bytes + Buffer::kAlignment - 1) / Buffer::kAlignment * Buffer::kAlignment;
  Arena& shared = arena();
  const std::lock_guard lock(shared.mutex);
  std::shared_ptr<Buffer> piece = shared.piece.lock();
  if (piece == nullptr || shared.used + rounded > piece->size()) {
    piece = std::make_shared<Buffer>(kPieceBytes);
    shared.piece = piece;
    shared.used = 0;
  }
  std::byte* data = piece->data() + shared.used;
  shared.used += rounded;
  return {std::move(piece), data, num_bytes};
}

}  // namespace pocket::cpu
