// The inner loops of kernels/elementwise.h, one table per instruction set.
#pragma once

#include <cstdint>

#include "kernels/elementwise.h"

namespace pocket::cpu {

struct ElementwiseKernels {
  // One row (or head) of num_columns.
  void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t num_columns, float* y);
  void (*gated)(Gate gate_kind, const float* gate, const float* up, std::int64_t num_columns, float* y);
  // num_heads heads of head_dim floats, whose first 2 * num_pairs are rotated.
  void (*rotate)(RotaryStyle style, const float* cosines, const float* sines, std::int64_t num_pairs,
                 std::int64_t num_heads, std::int64_t head_dim, float* x);
  void (*scale)(float factor, std::int64_t count, float* x);
  void (*add)(const float* x, std::int64_t count, float* y);
};

template <class V>
struct ElementwiseKernelsOf {
  static const ElementwiseKernels& table() noexcept;
};

// Elements from which on a second thread is worth waking, and what a task has at least.
inline constexpr std::int64_t kMinParallelElements = std::int64_t{1} << 15;
inline constexpr std::int64_t kTaskElements = std::int64_t{1} << 13;

// Calls task(begin, end) over [0, count) of items of `elements` each, in parallel when there is enough to do.
template <class Task>
void for_ranges(Context& context, std::int64_t count, std::int64_t elements, Task&& task) {
  if (count * elements < kMinParallelElements) {
    task(std::int64_t{0}, count);
    return;
  }
  const std::int64_t step = elements >= kTaskElements ? 1 : kTaskElements / elements;
  context.threads.run((count + step - 1) / step, [&](std::int64_t index, int) {
    const std::int64_t end = (index + 1) * step;
    task(index * step, end < count ? end : count);
  });
}

}  // namespace pocket::cpu
