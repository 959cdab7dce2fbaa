// One tile of attention by the functions of one instruction set: all sets that fuse products give the same bits.
#include "kernels/cpu/attention/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/cpu/attention/kv_cache.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/devices.h"

using namespace pocket;
using namespace pocket::cpu;

namespace {

struct Sizes {
  std::int32_t head_dim, window;
  KvType type;
  std::int64_t num_positions;
};

// A dim that fills no vector, windows, more than one segment.
constexpr Sizes kAllSizes[] = {
    {64, 0, KvType::kF16, 370},     {20, 7, KvType::kF16, 300}, {64, 0, KvType::kQ8_0, 310},
    {33, 270, KvType::kQ8_0, 550}, {64, 0, KvType::kF32, 370}, {20, 7, KvType::kF32, 300},
    {33, 270, KvType::kF32, 550},
};
// Fewer than any set's group of rows, and several groups.
constexpr std::int32_t kRowCounts[] = {1, 11};

std::vector<float> random_floats(std::mt19937& random, std::int64_t count, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> all(static_cast<std::size_t>(count));
  for (float& one : all) one = normal(random);
  return all;
}

// out [num_rows, head_dim] of the last rows of a sequence.
std::vector<float> attend_by(const AttentionKernels& kernels, const Sizes& sizes, std::int32_t num_rows) {
  const std::int64_t n = sizes.num_positions;
  std::mt19937 random(3);
  ThreadPool threads(1);
  Context context = open_device("cpu", threads);
  KvCache cache(context, {1, 1, sizes.head_dim, static_cast<std::int32_t>(n / 16 + 1), 16, sizes.type});
  const KvView<std::byte> state = view_of(cache);
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(cache.shape().num_blocks));
  std::iota(blocks.rbegin(), blocks.rend(), 0);
  AttentionTile tile;
  tile.type = sizes.type;
  tile.head_dim = sizes.head_dim;
  tile.padded_dim = static_cast<std::int32_t>(state.layout.padded_dim);
  tile.head = state.head(0, 0);
  tile.block_stride = state.layout.block_stride;
  tile.values_offset = state.layout.values_offset;
  tile.scales_offset = state.layout.scales_offset;
  tile.blocks = blocks.data();
  tile.num_rows = num_rows;
  tile.num_heads = 1;
  tile.position = n - num_rows;
  tile.window = sizes.window;
  for (std::int64_t position = 0; position < n; ++position) {
    const std::vector<float> key = random_floats(random, sizes.head_dim);
    const std::vector<float> value = random_floats(random, sizes.head_dim);
    std::byte* block = state.head(0, 0) + blocks[static_cast<std::size_t>(position / 16)] * tile.block_stride;
    kernels.store(tile, block, static_cast<std::int32_t>(position % 16), key.data(), value.data());
  }
  const std::vector<float> q = random_floats(random, std::int64_t{num_rows} * sizes.head_dim, 0.3f);
  tile.q = q.data();
  const auto num_floats = static_cast<std::size_t>(AttentionState::num_floats(num_rows, tile.padded_dim));
  std::vector<float> memory(num_floats), part_memory(num_floats);
  std::vector<float> scratch(static_cast<std::size_t>(kernels.scratch_floats(tile)));
  const AttentionState total = AttentionState::at(memory.data(), num_rows, tile.padded_dim);
  const AttentionState part = AttentionState::at(part_memory.data(), num_rows, tile.padded_dim);
  kernels.clear(num_rows, tile.padded_dim, total);
  for (std::int64_t segment = 0; segment * kSegment < n; ++segment) {
    kernels.attend_segment(tile, segment, part, scratch.data());
    kernels.merge(num_rows, tile.padded_dim, part, total);
  }
  std::vector<float> out(q.size());
  for (std::int64_t row = 0; row < num_rows; ++row) {
    kernels.finish(total, row, tile.padded_dim, sizes.head_dim, out.data() + row * sizes.head_dim);
  }
  return out;
}

}  // namespace

TEST(all_instruction_sets_give_the_same_attention) {
  for (const Sizes& sizes : kAllSizes) {
    for (const std::int32_t num_rows : kRowCounts) {
      const auto attend = [&](InstructionSet set) {
        return attend_by(kernels_for<AttentionKernelsOf>(set), sizes, num_rows);
      };
      const std::vector<float> plain = attend(InstructionSet::kScalar);
      const std::vector<float> best = attend(instruction_sets().back());
      // Plain C++ rounds a product before it is added.
      for (std::size_t i = 0; i < best.size(); ++i) CHECK_CLOSE(best[i], plain[i], 5e-6);
      for (const InstructionSet set : instruction_sets()) {
        if (set == InstructionSet::kScalar) continue;
        const std::vector<float> other = attend(set);
        CHECK(std::memcmp(best.data(), other.data(), best.size() * sizeof(float)) == 0);
      }
    }
  }
}
