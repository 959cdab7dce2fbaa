// The loops of Gated DeltaNet over any instruction set's Floats V.
#include "kernels/cpu/delta_net/kernels.h"

#include <cstdint>

#include "kernels/cpu/simd/product_tile.h"
#include "kernels/cpu/simd/vector_math.h"
#include POCKET_SIMD_HEADER

namespace pocket::cpu {

template <class V>
struct DeltaNetInner {
  static constexpr int kStepColumns = V::kTileRows * V::kTileColumns / 3 > 0 ? V::kTileRows * V::kTileColumns / 3 : 1;

  static void transpose_taps(const float* taps, std::int64_t kernel_size, std::int64_t count, std::int64_t stride,
                             float* out) noexcept {
    std::int64_t i = 0;
    if (kernel_size == 4) {
      for (; i + V::kCount <= count; i += V::kCount) {
        // Twice apart: taps (0, 2) and (1, 3) of sixteen channels, then each pair.
        float pairs[2][2 * V::kCount];
        for (int half = 0; half < 2; ++half) {
          V even, odd;
          V::load_pairs(taps + 4 * i + half * 2 * V::kCount, even, odd);
          even.store(pairs[0] + half * V::kCount);
          odd.store(pairs[1] + half * V::kCount);
        }
        for (int which = 0; which < 2; ++which) {
          V first, second;
          V::load_pairs(pairs[which], first, second);
          first.store(out + which * stride + i);
          second.store(out + (which + 2) * stride + i);
        }
      }
    }
    for (; i < count; ++i) {
      for (std::int64_t t = 0; t < kernel_size; ++t) out[t * stride + i] = taps[i * kernel_size + t];
    }
  }

  static void convolve(const float* const* inputs, const float* next, const float* taps, std::int64_t kernel_size,
                       std::int64_t count, std::int64_t stride, float* out) noexcept {
    for (std::int64_t i = 0; i < count; i += V::kCount) {
      V::prefetch(next + i);
      const std::int64_t left = count - i;
      V sum = V::zero();
      for (std::int64_t t = 0; t < kernel_size; ++t) {
        sum = V::mul_add(load_part<V>(inputs[t] + i, left), load_part<V>(taps + t * stride + i, left), sum);
      }
      store_part(silu(sum), out + i, left);
    }
  }

  static float sum_of_squares(const float* x, std::int64_t count) noexcept {
    V sums[2] = {V::zero(), V::zero()};
    for (std::int64_t i = 0; i < count; i += V::kCount) {
      const V values = load_part<V>(x + i, count - i);
      V& sum = sums[(i / V::kCount) % 2];
      sum = V::mul_add(values, values, sum);
    }
    return (sums[0] + sums[1]).sum();
  }

  static void normalize(std::int64_t count, float factor, float* x) noexcept {
    const V scale = V::broadcast(factor / __builtin_sqrtf(sum_of_squares(x, count) + 1e-6f));
    for (std::int64_t i = 0; i < count; i += V::kCount) {
      store_part(load_part<V>(x + i, count - i) * scale, x + i, count - i);
    }
  }

  // S <- e^g S; d = beta (v - k^T S); S <- S + k d^T; o = q^T S, kColumns vectors of value_dim at a time.
  template <int kColumns>
  static void step_columns(const DeltaNetScratch& s, float decay, float beta, std::int64_t dim) noexcept {
    const V decays = V::broadcast(decay);
    V predicted[kColumns];
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) predicted[c] = V::zero();
    for (std::int64_t k = 0; k < s.key_dim; ++k) {
      const V key = V::broadcast(s.keys[k]);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) {
        predicted[c] = V::mul_add(key, V::load(s.state + k * s.padded_value + dim + c * V::kCount), predicted[c]);
      }
    }
    V delta[kColumns], out[kColumns];
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      delta[c] = V::neg_mul_add(predicted[c], decays, V::load(s.values + dim + c * V::kCount)) * V::broadcast(beta);
      out[c] = V::zero();
    }
    for (std::int64_t k = 0; k < s.key_dim; ++k) {
      const V key = V::broadcast(s.keys[k]);
      const V query = V::broadcast(s.queries[k]);
      float* row = s.state + k * s.padded_value + dim;
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) {
        const V state = V::mul_add(key, delta[c], V::load(row + c * V::kCount) * decays);
        state.store(row + c * V::kCount);
        out[c] = V::mul_add(query, state, out[c]);
      }
    }
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) out[c].store(s.outputs + dim + c * V::kCount);
  }

  static void step(const DeltaNetScratch& scratch, float decay, float beta) noexcept {
    for (std::int64_t dim = 0; dim < scratch.padded_value;) {
      with_constant<kStepColumns>((scratch.padded_value - dim) / V::kCount, [&]<int kColumns>() {
        step_columns<kColumns>(scratch, decay, beta, dim);
        dim += kColumns * V::kCount;
      });
    }
  }

  // Calls visit.template operator()<kRows>(row) over groups of rows.
  template <class Visit>
  [[gnu::always_inline]] static void for_rows(std::int64_t num_rows, Visit&& visit) {
    for (std::int64_t row = 0; row < num_rows;) {
      with_constant<V::kTileRows>(num_rows - row, [&]<int kRows>() {
        visit.template operator()<kRows>(row);
        row += kRows;
      });
    }
  }

  template <int kRows, int kColumns>
  [[gnu::always_inline]] static void clear(V (&sums)[kRows][kColumns]) noexcept {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) sums[r][c] = V::zero();
    }
  }

  // sums += a [kRows, count] * b [count, kColumns vectors]
  template <int kRows, int kColumns>
  [[gnu::always_inline]] static void multiply(V (&sums)[kRows][kColumns], const float* a, std::int64_t a_stride,
                                              const float* b, std::int64_t b_stride, std::int64_t count) noexcept {
    const float* columns[kColumns];
    for (int c = 0; c < kColumns; ++c) columns[c] = b + c * V::kCount;
    multiply_add<V, kRows, kColumns>(sums, a, a_stride, columns, b_stride, count);
  }

  template <int kRows, int kColumns>
  [[gnu::always_inline]] static void store(const V (&sums)[kRows][kColumns], float* out, std::int64_t stride) noexcept {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) sums[r][c].store(out + r * stride + c * V::kCount);
    }
  }

  // out = rows * keys^T, where it reaches the lower triangle.
  static void compare(const DeltaNetScratch& s, const float* rows, std::int64_t num_rows, float* out) noexcept {
    for_rows(num_rows, [&]<int kRows>(std::int64_t row) {
      for (std::int64_t column = 0; column < row + kRows;) {
        with_constant<V::kTileColumns>((row + kRows - column + V::kCount - 1) / V::kCount, [&]<int kColumns>() {
          V sums[kRows][kColumns];
          clear(sums);
          multiply(sums, rows + row * s.padded_key, s.padded_key, s.transposed_keys + column, kSegmentRows, s.key_dim);
          store(sums, out + row * kSegmentRows + column, kSegmentRows);
          column += kColumns * V::kCount;
        });
      }
    });
  }

  // out [16, 16] = in transposed; rows of `in` from num_rows on are taken as 0, rows of `out` from num_out on are not
  // written. An element's index has four bits of row and four of column; interleaving the two halves of the whole array
  // rotates these eight bits by one, so four times exchanges row and column.
  static void transpose_tile(const float* in, std::int64_t in_stride, std::int64_t num_rows, float* out,
                             std::int64_t out_stride, std::int64_t num_out) noexcept {
    constexpr int n = V::kCount;
    float turned[2][n * n];
    for (int i = 0; i < n; ++i) (i < num_rows ? V::load(in + i * in_stride) : V::zero()).store(turned[0] + i * n);
    for (int stage = 0; stage < 4; ++stage) {
      const float* from = turned[stage % 2];
      float* to = turned[(stage + 1) % 2];
      for (int i = 0; i < n / 2; ++i) {
        V::store_pairs(to + 2 * i * n, V::load(from + i * n), V::load(from + (i + n / 2) * n));
      }
    }
    for (int i = 0; i < n && i < num_out; ++i) V::load(turned[0] + i * n).store(out + i * out_stride);
  }

  static void compare_keys(const DeltaNetScratch& s, std::int64_t num_rows) noexcept {
    for (std::int64_t row = 0; row < num_rows; row += V::kCount) {
      for (std::int64_t k = 0; k < s.key_dim; k += V::kCount) {
        transpose_tile(s.keys + row * s.padded_key + k, s.padded_key, num_rows - row,
                       s.transposed_keys + k * kSegmentRows + row, kSegmentRows, s.key_dim - k);
      }
    }
    compare(s, s.queries, num_rows, s.query_key);
    compare(s, s.keys, num_rows, s.key_key);
  }

  // out[i][j] = factor_i * raw[i][j] * e^(c_i - c_j) for j < i, or j <= i with the diagonal; 0 to the right of that.
  template <bool kDiagonal>
  static void decay_triangle(const DeltaNetGates& gates, std::int64_t num_rows, const float* raw, float* out) noexcept {
    for (std::int64_t i = 0; i < num_rows; ++i) {
      const std::int64_t end = kDiagonal ? i + 1 : i;
      const V high = V::broadcast(gates.high[i]);
      const V low = V::broadcast(gates.low[i]);
      const V factor = V::broadcast(kDiagonal ? 1.0f : -gates.beta[i]);
      for (std::int64_t j = 0; j < end; j += V::kCount) {
        // What lies right of the triangle is set to 0 before exp, which would overflow there.
        const typename V::Mask inside = V::range(0, static_cast<int>(end - j));
        const V exponent = (high - V::load(gates.high + j)) + (low - V::load(gates.low + j));
        const V decay = exp(V::select(inside, exponent, V::zero()));
        const V x = V::load(raw + i * kSegmentRows + j) * decay * factor;
        V::select(inside, x, V::zero()).store(out + i * kSegmentRows + j);
      }
    }
  }

  // sums += triangle[row, row + kRows) * corrected, up to the row before each (or itself: kDiagonal). Without kDiagonal
  // a row is final once its own sum is, and enters the sums of those after it.
  template <bool kDiagonal, int kRows, int kColumns>
  [[gnu::always_inline]] static void multiply_triangle(V (&sums)[kRows][kColumns], const float* triangle,
                                                       const float* corrected, std::int64_t row) noexcept {
    multiply(sums, triangle + row * kSegmentRows, kSegmentRows, corrected, kStrip, row);
#pragma GCC unroll 8
    for (int j = 0; j < kRows; ++j) {
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) {
        V one = sums[j][c];
        if constexpr (kDiagonal) one = V::load(corrected + (row + j) * kStrip + c * V::kCount);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          if (r < j || (r == j && !kDiagonal)) continue;
          sums[r][c] = V::mul_add(V::broadcast(triangle[(row + r) * kSegmentRows + row + j]), one, sums[r][c]);
        }
      }
    }
  }

  // e^c_i and e^(c_last - c_i).
  struct Decays {
    float from_start[kSegmentRows];
    float to_end[kSegmentRows];
  };

  template <int kColumns>
  static void segment_strip(const DeltaNetScratch& s, const DeltaNetGates& gates, const Decays& decays,
                          std::int64_t num_rows, std::int64_t dim) noexcept {
    const std::int64_t stride = s.padded_value;
    for (std::int64_t k = 0; k < s.key_dim; ++k) {
      for (int c = 0; c < kColumns; ++c) {
        V::load(s.state + k * stride + dim + c * V::kCount).store(s.state_strip + k * kStrip + c * V::kCount);
      }
    }
    // v' = T^-1 (beta (v - e^c (k S))), T = I + beta (k k^T) e^(c_i - c_j) below the diagonal.
    for_rows(num_rows, [&]<int kRows>(std::int64_t row) {
      V sums[kRows][kColumns];
      clear(sums);
      multiply(sums, s.keys + row * s.padded_key, s.padded_key, s.state_strip, kStrip, s.key_dim);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const V decay = V::broadcast(decays.from_start[row + r]);
        const V beta = V::broadcast(gates.beta[row + r]);
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) {
          const V values = V::load(s.values + (row + r) * stride + dim + c * V::kCount);
          sums[r][c] = V::neg_mul_add(sums[r][c], decay, values) * beta;
        }
      }
      multiply_triangle<false>(sums, s.solve, s.corrected, row);
      store(sums, s.corrected + row * kStrip, kStrip);
    });
    // o = e^c (q S) + P v', P = (q k^T) e^(c_i - c_j) up to the diagonal.
    for_rows(num_rows, [&]<int kRows>(std::int64_t row) {
      V sums[kRows][kColumns];
      clear(sums);
      multiply(sums, s.queries + row * s.padded_key, s.padded_key, s.state_strip, kStrip, s.key_dim);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const V decay = V::broadcast(decays.from_start[row + r]);
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) sums[r][c] = sums[r][c] * decay;
      }
      multiply_triangle<true>(sums, s.attend, s.corrected, row);
      store(sums, s.outputs + row * stride + dim, stride);
    });
    // S <- e^c_last S + sum over i of (e^(c_last - c_i) k_i) v'_i^T.
    const V decay = V::broadcast(decays.from_start[num_rows - 1]);
    for_rows(s.key_dim, [&]<int kRows>(std::int64_t k) {
      V sums[kRows][kColumns];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) {
          sums[r][c] = V::load(s.state_strip + (k + r) * kStrip + c * V::kCount) * decay;
        }
      }
      multiply(sums, s.scaled_keys + k * kSegmentRows, kSegmentRows, s.corrected, kStrip, num_rows);
      store(sums, s.state + k * stride + dim, stride);
    });
  }

  static void segment(const DeltaNetScratch& s, const DeltaNetGates& gates, std::int64_t num_rows) noexcept {
    static_assert(kStrip >= V::kTileColumns * V::kCount);
    Decays decays;
    const V last_high = V::broadcast(gates.high[num_rows - 1]);
    const V last_low = V::broadcast(gates.low[num_rows - 1]);
    for (std::int64_t i = 0; i < kSegmentRows; i += V::kCount) {
      const V high = V::load(gates.high + i);
      const V low = V::load(gates.low + i);
      exp(high).store(decays.from_start + i);
      exp((last_high - high) + (last_low - low)).store(decays.to_end + i);
    }
    decay_triangle<false>(gates, num_rows, s.key_key, s.solve);
    decay_triangle<true>(gates, num_rows, s.query_key, s.attend);
    for (std::int64_t k = 0; k < s.key_dim; ++k) {
      for (std::int64_t i = 0; i < num_rows; i += V::kCount) {
        const V keys = V::load(s.transposed_keys + k * kSegmentRows + i);
        (keys * V::load(decays.to_end + i)).store(s.scaled_keys + k * kSegmentRows + i);
      }
    }
    for (std::int64_t dim = 0; dim < s.padded_value;) {
      with_constant<V::kTileColumns>((s.padded_value - dim) / V::kCount, [&]<int kColumns>() {
        segment_strip<kColumns>(s, gates, decays, num_rows, dim);
        dim += kColumns * V::kCount;
      });
    }
  }

  static void finish(const float* x, const float* z, const float* next, const float* norm, float eps,
                     std::int64_t count, float* y) noexcept {
    const float mean = sum_of_squares(x, count) / static_cast<float>(count);
    const V factor = V::broadcast(1.0f / __builtin_sqrtf(mean + eps));
    for (std::int64_t i = 0; i < count; i += V::kCount) {
      V::prefetch(next + i);
      const std::int64_t left = count - i;
      const V normalized = load_part<V>(x + i, left) * factor * load_part<V>(norm + i, left);
      store_part(normalized * silu(load_part<V>(z + i, left)), y + i, left);
    }
  }
};

template <class V>
const DeltaNetKernels& DeltaNetKernelsOf<V>::table() noexcept {
  using Inner = DeltaNetInner<V>;
  static constexpr DeltaNetKernels kTable{Inner::transpose_taps, Inner::convolve, Inner::normalize, Inner::step,
                                          Inner::compare_keys,   Inner::segment,  Inner::finish};
  return kTable;
}

template struct DeltaNetKernelsOf<POCKET_SIMD::Floats>;

}  // namespace pocket::cpu
