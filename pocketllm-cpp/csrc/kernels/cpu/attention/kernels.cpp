// The loops of attention over any instruction set's Floats V (see kernels.h for the order of operations).
#include "kernels/cpu/attention/kernels.h"

#include <cstdint>

#include "kernels/cpu/simd/product_tile.h"
#include "kernels/cpu/simd/vector_math.h"
#include POCKET_SIMD_HEADER

namespace pocket::cpu {

template <class V>
struct AttentionInner {
  static constexpr int kBlockSize = V::kCount;  // of the cache: one vector of scores
  static constexpr int kSpanBlocks = kSpan / kBlockSize;
  static_assert(kLanes == V::kCount);

  // Positions of a span that some row of the tile sees, and where their blocks are.
  struct Span {
    std::int64_t start = 0;  // position
    int first = 0, end = 0;  // relative to start
    int first_block = 0, end_block = 0;
    const std::byte* blocks[kSpanBlocks] = {};
  };

  struct Scratch {
    float* weights;  // [num_rows, kSpan]: scores, then weights
    float* factors;  // [num_rows]: what a row's sums are rescaled by
    float* keys;     // [head_dim, kSpan]
    float* values;   // [kSpan, padded_dim]
  };

  static std::int64_t position_of(const AttentionTile& tile, std::int64_t row) noexcept {
    return tile.position + row / tile.num_heads;
  }
  static std::int64_t first_visible(const AttentionTile& tile, std::int64_t row) noexcept {
    const std::int64_t first = tile.window > 0 ? position_of(tile, row) - tile.window + 1 : 0;
    return first > 0 ? first : 0;
  }

  // Keys and values are converted once per span when several groups of rows read them, else on every load. Floats need
  // no conversion.
  static bool converts(const AttentionTile& tile) noexcept {
    return tile.num_rows > V::kTileRows && tile.type != KvType::kF32;
  }

  static std::int64_t scratch_floats(const AttentionTile& tile) noexcept {
    const std::int64_t rows = std::int64_t{tile.num_rows} * (kSpan + 1) + kLanes;
    return converts(tile) ? rows + std::int64_t{kSpan} * (tile.head_dim + tile.padded_dim) : rows;
  }

  static Scratch lay_out(const AttentionTile& tile, float* memory) noexcept {
    Scratch scratch{};
    scratch.weights = memory;
    scratch.keys = scratch.weights + std::int64_t{tile.num_rows} * kSpan;
    scratch.values = scratch.keys + (converts(tile) ? std::int64_t{kSpan} * tile.head_dim : 0);
    scratch.factors = scratch.values + (converts(tile) ? std::int64_t{kSpan} * tile.padded_dim : 0);
    return scratch;
  }

  template <class T>
  static const T* keys(const std::byte* block) noexcept {
    return reinterpret_cast<const T*>(block);
  }
  template <class T>
  static const T* values(const AttentionTile& tile, const std::byte* block) noexcept {
    return reinterpret_cast<const T*>(block + tile.values_offset);
  }
  static const float* key_scales(const AttentionTile& tile, const std::byte* block) noexcept {
    return reinterpret_cast<const float*>(block + tile.scales_offset);
  }
  static const float* value_scales(const AttentionTile& tile, const std::byte* block) noexcept {
    return key_scales(tile, block) + kBlockSize;
  }

  // False when no row of the tile sees any of it.
  static bool find_span(const AttentionTile& tile, std::int64_t start, Span& span) noexcept {
    const std::int64_t first = first_visible(tile, 0) - start;
    const std::int64_t end = position_of(tile, tile.num_rows - 1) + 1 - start;
    if (end <= 0 || first >= kSpan) return false;
    span.start = start;
    span.first = first > 0 ? static_cast<int>(first) : 0;
    span.end = end < kSpan ? static_cast<int>(end) : kSpan;
    span.first_block = span.first / kBlockSize;
    span.end_block = (span.end + kBlockSize - 1) / kBlockSize;
    for (int b = span.first_block; b < span.end_block; ++b) {
      span.blocks[b] = tile.head + tile.blocks[start / kBlockSize + b] * tile.block_stride;
    }
    return true;
  }

  template <class T>
  static void convert(const AttentionTile& tile, const Span& span, const Scratch& scratch) noexcept {
    for (int b = span.first_block; b < span.end_block; ++b) {
      const T* from = keys<T>(span.blocks[b]);
      float* to = scratch.keys + b * kBlockSize;
      for (std::int64_t d = 0; d < tile.head_dim; ++d) V::load(from + d * kBlockSize).store(to + d * kSpan);
    }
    for (int j = span.first; j < span.end; ++j) {
      const T* from = values<T>(tile, span.blocks[j / kBlockSize]) + (j % kBlockSize) * tile.padded_dim;
      float* to = scratch.values + j * tile.padded_dim;
      for (std::int64_t d = 0; d < tile.padded_dim; d += V::kCount) V::load(from + d).store(to + d);
    }
  }

  // weights[row][position] = q . k for kRows rows and kColumns blocks, starting at `row` and `block`.
  template <class T, int kRows, int kColumns>
  static void score_tile(const AttentionTile& tile, const T* const (&columns)[kColumns], std::int64_t stride,
                         std::int64_t row, int block, const Scratch& scratch) noexcept {
    V sums[kRows][kColumns];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) sums[r][c] = V::zero();
    }
    multiply_add<V, kRows, kColumns>(sums, tile.q + row * tile.head_dim, tile.head_dim, columns, stride, tile.head_dim);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) {
        sums[r][c].store(scratch.weights + (row + r) * kSpan + (block + c) * kBlockSize);
      }
    }
  }

  // kConverted: keys are taken from the scratch, else T is what the cache holds.
  template <class T, bool kConverted>
  static void score(const AttentionTile& tile, const Span& span, const Scratch& scratch) noexcept {
    for (std::int64_t row = 0; row < tile.num_rows;) {
      const std::int64_t rows_left = tile.num_rows - row;
      with_constant<V::kTileRows>(rows_left, [&]<int kRows>() {
        for (int block = span.first_block; block < span.end_block;) {
          with_constant<V::kTileColumns>(span.end_block - block, [&]<int kColumns>() {
            const T* columns[kColumns];
            for (int c = 0; c < kColumns; ++c) {
              if constexpr (kConverted) {
                columns[c] = scratch.keys + (block + c) * kBlockSize;
              } else {
                columns[c] = keys<T>(span.blocks[block + c]);
              }
            }
            const std::int64_t stride = kConverted ? kSpan : kBlockSize;
            score_tile<T, kRows, kColumns>(tile, columns, stride, row, block, scratch);
            block += kColumns;
          });
        }
        row += kRows;
      });
    }
  }

  // Turns the scores of one row into weights, and updates its largest score, its sums and its factor.
  template <bool kScaled>
  static void weigh(const AttentionTile& tile, const Span& span, std::int64_t row, const AttentionState& state,
                    const Scratch& scratch) noexcept {
    constexpr float kInfinity = __builtin_inff();
    float* weights = scratch.weights + row * kSpan;
    const std::int64_t first = first_visible(tile, row) - span.start;
    const std::int64_t end = position_of(tile, row) + 1 - span.start;
    const int from = first < 0 ? 0 : first > kSpan ? kSpan : static_cast<int>(first);
    const int to = end < 0 ? 0 : end > kSpan ? kSpan : static_cast<int>(end);
    V scores[kSpanBlocks];
#pragma GCC unroll 8
    for (int b = 0; b < kSpanBlocks; ++b) {
      scores[b] = V::broadcast(-kInfinity);
      if (b < span.first_block || b >= span.end_block) continue;
      V score = V::load(weights + b * kBlockSize);
      if constexpr (kScaled) score = score * V::load(key_scales(tile, span.blocks[b]));
      const bool whole = from <= b * kBlockSize && to >= (b + 1) * kBlockSize;
      scores[b] = whole ? score : V::select(V::range(from - b * kBlockSize, to - b * kBlockSize), score, scores[b]);
    }
    const float before = state.largest[row];
    const float in_span = V::max(V::max(scores[0], scores[1]), V::max(scores[2], scores[3])).largest();
    const float largest = before > in_span ? before : in_span;
    const float subtracted = largest == -kInfinity ? 0.0f : largest;
    V row_weights[kSpanBlocks];
#pragma GCC unroll 8
    for (int b = 0; b < kSpanBlocks; ++b) row_weights[b] = softmax_weight(scores[b] - V::broadcast(subtracted));
    V factor = V::broadcast(1.0f);
    if (before != largest) factor = softmax_weight(V::broadcast(before - subtracted));
    state.largest[row] = largest;
    factor.store_first(scratch.factors + row, 1);
    const V in_lanes = (row_weights[0] + row_weights[1]) + (row_weights[2] + row_weights[3]);
    V::mul_add(V::load(state.sums + row * kLanes), factor, in_lanes).store(state.sums + row * kLanes);
#pragma GCC unroll 8
    for (int b = 0; b < kSpanBlocks; ++b) {
      if (b < span.first_block || b >= span.end_block) continue;
      V weight = row_weights[b];
      if constexpr (kScaled) {
        // The scales of positions that the row does not see are undefined.
        weight = weight * V::load(value_scales(tile, span.blocks[b]));
        const bool whole = from <= b * kBlockSize && to >= (b + 1) * kBlockSize;
        if (!whole) weight = V::select(V::range(from - b * kBlockSize, to - b * kBlockSize), weight, V::zero());
      }
      weight.store(weights + b * kBlockSize);
    }
  }

  // state.values = state.values * factor + weights * values for kRows rows and kColumns vectors of the head.
  template <class T, bool kConverted, int kRows, int kColumns>
  static void accumulate_tile(const AttentionTile& tile, const Span& span, std::int64_t row, std::int64_t dim,
                              const AttentionState& state, const Scratch& scratch) noexcept {
    V sums[kRows][kColumns];
    float* out = state.values + row * tile.padded_dim + dim;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V factor = V::broadcast(scratch.factors[row + r]);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) sums[r][c] = V::load(out + r * tile.padded_dim + c * V::kCount) * factor;
    }
    const float* weights = scratch.weights + row * kSpan;
    const T* columns[kColumns];
    if constexpr (kConverted) {
      for (int c = 0; c < kColumns; ++c) {
        columns[c] = scratch.values + span.first * std::int64_t{tile.padded_dim} + dim + c * V::kCount;
      }
      multiply_add<V, kRows, kColumns>(sums, weights + span.first, kSpan, columns, tile.padded_dim,
                                       span.end - span.first);
    } else {
      for (int b = span.first_block; b < span.end_block; ++b) {
        const int first = span.first > b * kBlockSize ? span.first - b * kBlockSize : 0;
        const int end = span.end < (b + 1) * kBlockSize ? span.end - b * kBlockSize : kBlockSize;
        for (int c = 0; c < kColumns; ++c) {
          columns[c] = values<T>(tile, span.blocks[b]) + first * std::int64_t{tile.padded_dim} + dim + c * V::kCount;
        }
        multiply_add<V, kRows, kColumns>(sums, weights + b * kBlockSize + first, kSpan, columns, tile.padded_dim,
                                         end - first);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) sums[r][c].store(out + r * tile.padded_dim + c * V::kCount);
    }
  }

  template <class T, bool kConverted>
  static void accumulate(const AttentionTile& tile, const Span& span, const AttentionState& state,
                         const Scratch& scratch) noexcept {
    for (std::int64_t row = 0; row < tile.num_rows;) {
      with_constant<V::kTileRows>(tile.num_rows - row, [&]<int kRows>() {
        for (std::int64_t dim = 0; dim < tile.padded_dim;) {
          with_constant<V::kTileColumns>((tile.padded_dim - dim) / V::kCount, [&]<int kColumns>() {
            accumulate_tile<T, kConverted, kRows, kColumns>(tile, span, row, dim, state, scratch);
            dim += kColumns * V::kCount;
          });
        }
        row += kRows;
      });
    }
  }

  // T: what the cache holds.
  template <class T>
  static void attend_span(const AttentionTile& tile, const Span& span, const AttentionState& state,
                          const Scratch& scratch) noexcept {
    // Known to be false for floats, whose conversions are then left out.
    const bool converted = sizeof(T) != sizeof(float) && converts(tile);
    if (converted) {
      convert<T>(tile, span, scratch);
      score<float, true>(tile, span, scratch);
    } else {
      score<T, false>(tile, span, scratch);
    }
    for (std::int64_t row = 0; row < tile.num_rows; ++row) {
      weigh<sizeof(T) == 1>(tile, span, row, state, scratch);
    }
    if (converted) {
      accumulate<float, true>(tile, span, state, scratch);
    } else {
      accumulate<T, false>(tile, span, state, scratch);
    }
  }

  static void attend_segment(const AttentionTile& tile, std::int64_t segment, const AttentionState& state,
                             float* memory) noexcept {
    clear(tile.num_rows, tile.padded_dim, state);
    const Scratch scratch = lay_out(tile, memory);
    for (std::int64_t start = segment * kSegment; start < (segment + 1) * kSegment; start += kSpan) {
      Span span;
      if (!find_span(tile, start, span)) continue;
      switch (tile.type) {
        case KvType::kF16: attend_span<std::uint16_t>(tile, span, state, scratch); break;
        case KvType::kQ8_0: attend_span<std::int8_t>(tile, span, state, scratch); break;
        case KvType::kF32: attend_span<float>(tile, span, state, scratch); break;
      }
    }
  }

  static void clear(std::int64_t num_rows, std::int64_t padded_dim, const AttentionState& state) noexcept {
    for (std::int64_t row = 0; row < num_rows; ++row) state.largest[row] = -__builtin_inff();
    for (std::int64_t i = 0; i < num_rows * kLanes; i += V::kCount) V::zero().store(state.sums + i);
    for (std::int64_t i = 0; i < num_rows * padded_dim; i += V::kCount) V::zero().store(state.values + i);
  }

  static void merge(std::int64_t num_rows, std::int64_t padded_dim, const AttentionState& from,
                    const AttentionState& into) noexcept {
    for (std::int64_t row = 0; row < num_rows; ++row) {
      const float earlier = into.largest[row];
      const float later = from.largest[row];
      const float largest = earlier > later ? earlier : later;
      const float subtracted = largest == -__builtin_inff() ? 0.0f : largest;
      const V keep = softmax_weight(V::broadcast(earlier - subtracted));
      const V take = softmax_weight(V::broadcast(later - subtracted));
      into.largest[row] = largest;
      float* sums = into.sums + row * kLanes;
      V::mul_add(V::load(from.sums + row * kLanes), take, V::load(sums) * keep).store(sums);
      float* values = into.values + row * padded_dim;
      for (std::int64_t d = 0; d < padded_dim; d += V::kCount) {
        const V merged = V::mul_add(V::load(from.values + row * padded_dim + d), take, V::load(values + d) * keep);
        (merged + V::zero()).store(values + d);  // not -0
      }
    }
  }

  static void finish(const AttentionState& state, std::int64_t row, std::int64_t padded_dim, std::int64_t head_dim,
                     float* out) noexcept {
    const V inverse = V::broadcast(1.0f / V::load(state.sums + row * kLanes).sum());
    const float* values = state.values + row * padded_dim;
    for (std::int64_t d = 0; d < head_dim; d += V::kCount) {
      store_part(V::load(values + d) * inverse, out + d, head_dim - d);
    }
  }

  static void scale(const float* x, float factor, std::int64_t count, float* out) noexcept {
    for (std::int64_t i = 0; i < count; ++i) out[i] = x[i] * factor;
  }

  static float largest_magnitude(const float* x, std::int64_t count) noexcept {
    V largest = V::zero();
    for (std::int64_t i = 0; i < count; i += V::kCount) largest = V::max(largest, load_part<V>(x + i, count - i).abs());
    return largest.largest();
  }

  // An infinity in the cache would make NaN of weight 0 times it.
  static V saturated(V x, float limit) noexcept {
    return V::max(V::broadcast(-limit), V::min(V::broadcast(limit), x));
  }

  // Sixteen elements from d on, as they are stored. `inverse_scale` is for codes alone.
  static void narrow(const float* x, std::int64_t count, float, std::uint16_t* out) noexcept {
    saturated(load_part<V>(x, count), 65504.0f).store(out);
  }
  static void narrow(const float* x, std::int64_t count, float, float* out) noexcept {
    saturated(load_part<V>(x, count), 0x1.fffffep+127f).store(out);
  }
  static void narrow(const float* x, std::int64_t count, float inverse_scale, std::int8_t* out) noexcept {
    (load_part<V>(x, count) * V::broadcast(inverse_scale)).round().store(out);
  }

  template <class T>
  static void store_as(const AttentionTile& place, std::byte* block, std::int32_t index, const float* key,
                       const float* value) noexcept {
    float inverses[2] = {1.0f, 1.0f};
    if constexpr (sizeof(T) == 1) {
      float* scales = reinterpret_cast<float*>(block + place.scales_offset);
      for (int which = 0; which < 2; ++which) {
        const float largest = largest_magnitude(which == 0 ? key : value, place.head_dim);
        // Vectors too small for a normal scale are stored as zero.
        const bool tiny = largest < 0x1p-100f;
        scales[which * kBlockSize + index] = tiny ? 0.0f : largest / 127.0f;
        inverses[which] = tiny ? 0.0f : 127.0f / largest;
      }
    }
    T* keys = reinterpret_cast<T*>(block) + index;
    T* values = reinterpret_cast<T*>(block + place.values_offset) + std::int64_t{index} * place.padded_dim;
    for (std::int64_t d = 0; d < place.head_dim; d += V::kCount) {
      const std::int64_t count = place.head_dim - d;
      T codes[V::kCount];
      narrow(key + d, count, inverses[0], codes);
      for (int i = 0; i < V::kCount && i < count; ++i) keys[(d + i) * kBlockSize] = codes[i];
      narrow(value + d, count, inverses[1], values + d);
    }
  }

  static void store(const AttentionTile& place, std::byte* block, std::int32_t index, const float* key,
                    const float* value) noexcept {
    switch (place.type) {
      case KvType::kF16: store_as<std::uint16_t>(place, block, index, key, value); break;
      case KvType::kQ8_0: store_as<std::int8_t>(place, block, index, key, value); break;
      case KvType::kF32: store_as<float>(place, block, index, key, value); break;
    }
  }
};

template <class V>
const AttentionKernels& AttentionKernelsOf<V>::table() noexcept {
  using Inner = AttentionInner<V>;
  static constexpr AttentionKernels kTable{Inner::scratch_floats, Inner::attend_segment, Inner::merge, Inner::clear,
                                           Inner::finish,         Inner::scale,          Inner::store};
  return kTable;
}

template struct AttentionKernelsOf<POCKET_SIMD::Floats>;

}  // namespace pocket::cpu
