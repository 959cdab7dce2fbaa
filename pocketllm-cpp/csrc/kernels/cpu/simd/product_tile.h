// The inner loop of small products: a few rows of floats times columns of vectors, accumulated in registers.
//
// Each accumulator is one chain over k in ascending order, so that a row's result does not depend on which other rows
// share its tile.
#pragma once

#include <cstdint>

namespace pocket::cpu {

// accumulators[r][c] += sum over k of a[r * a_stride + k] * b[c][k * b_stride + lane], k in [0, count).
// T: what `b` is stored in: float, F16 bits or 8-bit integers.
template <class V, int kRows, int kColumns, class T>
[[gnu::always_inline]] inline void multiply_add(V (&accumulators)[kRows][kColumns], const float* a,
                                                std::int64_t a_stride, const T* const (&b)[kColumns],
                                                std::int64_t b_stride, std::int64_t count) noexcept {
  for (std::int64_t k = 0; k < count; ++k) {
    V column[kColumns];
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) column[c] = V::load(b[c] + k * b_stride);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V x = V::broadcast(a[r * a_stride + k]);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) accumulators[r][c] = V::mul_add(x, column[c], accumulators[r][c]);
    }
  }
}

// Calls task.template operator()<n>() with n = min(count, kLargest), for a count of at least 1.
template <int kLargest, class Task>
[[gnu::always_inline]] inline void with_constant(std::int64_t count, Task&& task) {
  if constexpr (kLargest == 1) {
    task.template operator()<1>();
  } else {
    if (count >= kLargest) {
      task.template operator()<kLargest>();
    } else {
      with_constant<kLargest - 1>(count, task);
    }
  }
}

}  // namespace pocket::cpu
