#include "kernels/attention.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/attention/kernels.h"
#include "kernels/cpu/attention/kv_cache.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/simd/dispatch.h"

namespace pocket::cpu {
namespace {

// Query rows per tile: enough that converting keys and values is shared by many.
constexpr std::int64_t kMaxTileRows = 48;
// Multiplications below which waking threads costs more than it saves.
constexpr std::int64_t kMinParallelWork = std::int64_t{1} << 17;
constexpr std::int64_t kMinParallelStores = std::int64_t{1} << 15;
constexpr std::int64_t kStoreRows = 16;
constexpr double kInverseLn2 = 1.4426950408889634;

// A tile and where it comes from.
struct Work {
  AttentionTile tile;
  std::int64_t first_row = 0;   // of the step's arrays
  std::int64_t first_head = 0;  // query head
  std::int64_t first_segment = 0;
  std::int64_t num_segments = 0;
  std::int64_t first_part = 0;  // where its segments' states begin, when they are computed apart

  std::int64_t state_floats() const noexcept { return AttentionState::num_floats(tile.num_rows, tile.padded_dim); }
};

AttentionTile tile_of_head(const KvView<const std::byte>& cache, std::int32_t layer, std::int32_t kv_head) {
  AttentionTile tile;
  tile.type = cache.shape.type;
  tile.head_dim = cache.shape.head_dim;
  tile.padded_dim = static_cast<std::int32_t>(cache.layout.padded_dim);
  tile.head = cache.head(layer, kv_head);
  tile.block_stride = cache.layout.block_stride;
  tile.values_offset = cache.layout.values_offset;
  tile.scales_offset = cache.layout.scales_offset;
  return tile;
}

std::vector<Work> divide(const KvView<const std::byte>& cache, std::int32_t layer, const AttentionShape& shape,
                         std::span<const SequenceRows> sequences) {
  const std::int64_t group = shape.num_heads / cache.shape.num_kv_heads;
  const std::int64_t parts = (group + kMaxTileRows - 1) / kMaxTileRows;
  const std::int64_t heads_per_tile = (group + parts - 1) / parts;
  const std::int64_t rows_per_tile = std::max<std::int64_t>(1, kMaxTileRows / heads_per_tile);
  std::vector<Work> all;
  for (const SequenceRows& sequence : sequences) {
    // The last rows see most: they come first, so that no long task is left for the end.
    for (std::int64_t end = sequence.num_rows; end > 0; end -= rows_per_tile) {
      const std::int64_t row = std::max<std::int64_t>(0, end - rows_per_tile);
      for (std::int32_t kv_head = 0; kv_head < cache.shape.num_kv_heads; ++kv_head) {
        for (std::int64_t head = 0; head < group; head += heads_per_tile) {
          Work work;
          work.tile = tile_of_head(cache, layer, kv_head);
          work.tile.blocks = sequence.blocks.data();
          work.tile.num_heads = static_cast<std::int32_t>(std::min(heads_per_tile, group - head));
          work.tile.num_rows = static_cast<std::int32_t>((end - row) * work.tile.num_heads);
          work.tile.position = sequence.position + row;
          work.tile.window = shape.window;
          work.first_row = sequence.first_row + row;
          work.first_head = kv_head * group + head;
          const std::int64_t first_visible =
              shape.window > 0 ? std::max<std::int64_t>(0, work.tile.position - shape.window + 1) : 0;
          const std::int64_t last_visible = sequence.position + end - 1;
          work.first_segment = first_visible / kSegment;
          work.num_segments = last_visible / kSegment - work.first_segment + 1;
          all.push_back(work);
        }
      }
    }
  }
  return all;
}

// Runs on every thread with memory of its own, which it keeps for the next call.
float* thread_memory(std::int64_t num_floats) {
  thread_local Buffer memory;
  return memory.reserve<float>(static_cast<std::size_t>(num_floats));
}

class Attention {
 public:
  Attention(const AttentionKernels& kernels, const AttentionShape& shape, const float* q, std::int64_t q_stride,
            float* out, std::int64_t out_stride)
      : kernels_(kernels),
        factor_(static_cast<float>(shape.scale * kInverseLn2)),
        q_(q),
        q_stride_(q_stride),
        out_(out),
        out_stride_(out_stride) {}

  // All segments of a tile, in order.
  void run_tile(const Work& work) const {
    const std::int64_t state_floats = work.state_floats();
    float* memory = thread_memory(2 * state_floats + q_floats(work) + kernels_.scratch_floats(work.tile));
    const AttentionTile tile = with_queries(work, memory + 2 * state_floats);
    const AttentionState total = AttentionState::at(memory, tile.num_rows, tile.padded_dim);
    const AttentionState part = AttentionState::at(memory + state_floats, tile.num_rows, tile.padded_dim);
    float* scratch = memory + 2 * state_floats + q_floats(work);
    kernels_.clear(tile.num_rows, tile.padded_dim, total);
    for (std::int64_t index = 0; index < work.num_segments; ++index) {
      kernels_.attend_segment(tile, work.first_segment + index, part, scratch);
      kernels_.merge(tile.num_rows, tile.padded_dim, part, total);
    }
    finish(work, total);
  }

  // One segment of a tile into `part`, to be merged by `merge_parts`.
  void run_segment(const Work& work, std::int64_t index, float* part) const {
    float* memory = thread_memory(q_floats(work) + kernels_.scratch_floats(work.tile));
    const AttentionTile tile = with_queries(work, memory);
    kernels_.attend_segment(tile, work.first_segment + index,
                            AttentionState::at(part, tile.num_rows, tile.padded_dim), memory + q_floats(work));
  }

  void merge_parts(const Work& work, float* parts) const {
    const AttentionTile& tile = work.tile;
    const std::int64_t state_floats = work.state_floats();
    const AttentionState total =
        AttentionState::at(thread_memory(state_floats), tile.num_rows, tile.padded_dim);
    kernels_.clear(tile.num_rows, tile.padded_dim, total);
    for (std::int64_t index = 0; index < work.num_segments; ++index) {
      const AttentionState part = AttentionState::at(parts + index * state_floats, tile.num_rows, tile.padded_dim);
      kernels_.merge(tile.num_rows, tile.padded_dim, part, total);
    }
    finish(work, total);
  }

 private:
  static std::int64_t q_floats(const Work& work) noexcept {
    return (std::int64_t{work.tile.num_rows} * work.tile.head_dim + kLanes - 1) / kLanes * kLanes;
  }

  AttentionTile with_queries(const Work& work, float* memory) const {
    AttentionTile tile = work.tile;
    tile.q = memory;
    for (std::int64_t row = 0; row < tile.num_rows; ++row) {
      const std::int64_t head = work.first_head + row % tile.num_heads;
      const float* from = q_ + (work.first_row + row / tile.num_heads) * q_stride_ + head * tile.head_dim;
      kernels_.scale(from, factor_, tile.head_dim, memory + row * tile.head_dim);
    }
    return tile;
  }

  void finish(const Work& work, const AttentionState& state) const {
    const AttentionTile& tile = work.tile;
    for (std::int64_t row = 0; row < tile.num_rows; ++row) {
      const std::int64_t head = work.first_head + row % tile.num_heads;
      float* to = out_ + (work.first_row + row / tile.num_heads) * out_stride_ + head * tile.head_dim;
      kernels_.finish(state, row, tile.padded_dim, tile.head_dim, to);
    }
  }

  const AttentionKernels& kernels_;
  float factor_;
  const float* q_;
  std::int64_t q_stride_;
  float* out_;
  std::int64_t out_stride_;
};

void store_kv(Context& context, KvCache& cache, std::int32_t layer, const SequenceTable& sequences, const float* k,
              const float* v, std::int64_t stride) {
  const AttentionKernels& kernels = kernels_in_use<AttentionKernelsOf>();
  check_device(context, cache.device(), "A key-value cache");
  const KvView<const std::byte> layout_of = view_of(std::as_const(cache));
  const KvView<std::byte> state = view_of(cache);
  const std::int64_t head_dim = state.shape.head_dim;
  const auto store_rows = [&](const SequenceRows& sequence, std::int64_t begin, std::int64_t end) {
    for (std::int32_t kv_head = 0; kv_head < state.shape.num_kv_heads; ++kv_head) {
      const AttentionTile place = tile_of_head(layout_of, layer, kv_head);
      std::byte* head = state.head(layer, kv_head);
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t position = sequence.position + row;
        const std::int64_t block = sequence.blocks[static_cast<std::size_t>(position / kBlockSize)];
        const std::int64_t offset = (sequence.first_row + row) * stride + kv_head * head_dim;
        kernels.store(place, head + block * place.block_stride,
                      static_cast<std::int32_t>(position % kBlockSize), k + offset, v + offset);
      }
    }
  };
  for (const SequenceRows& sequence : sequences.rows()) {
    if (sequence.num_rows * head_dim * state.shape.num_kv_heads < kMinParallelStores) {
      store_rows(sequence, 0, sequence.num_rows);
    } else {
      context.threads.run((sequence.num_rows + kStoreRows - 1) / kStoreRows, [&](std::int64_t index, int) {
        store_rows(sequence, index * kStoreRows,
                   std::min<std::int64_t>(sequence.num_rows, (index + 1) * kStoreRows));
      });
    }
  }
}

void attend(Context& context, const KvCache& cache, std::int32_t layer, const AttentionShape& shape,
            const SequenceTable& sequences, const float* q, std::int64_t q_stride, float* out,
            std::int64_t out_stride) {
  check_device(context, cache.device(), "A key-value cache");
  const Attention attention(kernels_in_use<AttentionKernelsOf>(), shape, q, q_stride, out, out_stride);
  std::vector<Work> all = divide(view_of(cache), layer, shape, sequences.rows());
  const auto num_tiles = static_cast<std::int64_t>(all.size());
  std::int64_t num_parts = 0;
  std::int64_t parts_floats = 0;
  std::int64_t multiplications = 0;
  for (Work& work : all) {
    work.first_part = parts_floats;
    num_parts += work.num_segments;
    parts_floats += work.num_segments * work.state_floats();
    const std::int64_t positions = std::min(work.num_segments * kSegment, work.tile.position + 1);
    multiplications += 2 * positions * work.tile.num_rows * work.tile.head_dim;
  }
  const int num_threads = context.threads.num_threads();
  if (num_threads == 1 || multiplications < kMinParallelWork) {
    for (const Work& work : all) attention.run_tile(work);
    return;
  }
  if (num_tiles >= 4 * num_threads || num_parts == num_tiles) {
    context.threads.run(num_tiles, [&](std::int64_t index, int) {
      attention.run_tile(all[static_cast<std::size_t>(index)]);
    });
    return;
  }
  // Too few tiles to keep the threads busy: their segments are computed apart, and merged as run_tile does.
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;  // tile, segment
  for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
    for (std::int64_t index = 0; index < all[static_cast<std::size_t>(tile)].num_segments; ++index) {
      parts.emplace_back(tile, index);
    }
  }
  thread_local Buffer memory;
  float* states = memory.reserve<float>(static_cast<std::size_t>(parts_floats));
  context.threads.run(num_parts, [&](std::int64_t part, int) {
    const auto [tile, index] = parts[static_cast<std::size_t>(part)];
    const Work& work = all[static_cast<std::size_t>(tile)];
    attention.run_segment(work, index, states + work.first_part + index * work.state_floats());
  });
  for (const Work& work : all) attention.merge_parts(work, states + work.first_part);
}

}  // namespace

void add_attention(Operations& table) noexcept {
  table.kv_block_size = kBlockSize;
  table.kv_block_bytes = block_bytes;
  table.store_kv = store_kv;
  table.load_kv = load_kv;
  table.attend = attend;
}

}  // namespace pocket::cpu
