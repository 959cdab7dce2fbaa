#include <cmath>

#include "kernels/cpu/elementwise/kernels.h"
#include "kernels/cpu/simd/dispatch.h"

namespace pocket {

RotaryTable::RotaryTable(std::span<const double> inverse_frequencies, std::int64_t max_positions,
                         double attention_factor)
    : rotary_dim_(2 * static_cast<std::int64_t>(inverse_frequencies.size())),
      data_(static_cast<std::size_t>(max_positions * rotary_dim_) * sizeof(float)) {
  const std::int64_t num_pairs = rotary_dim_ / 2;
  float* row = data_.as<float>();
  for (std::int64_t position = 0; position < max_positions; ++position, row += rotary_dim_) {
    for (std::int64_t i = 0; i < num_pairs; ++i) {
      const double angle = static_cast<double>(position) * inverse_frequencies[static_cast<std::size_t>(i)];
      row[i] = static_cast<float>(std::cos(angle) * attention_factor);
      row[num_pairs + i] = static_cast<float>(std::sin(angle) * attention_factor);
    }
  }
}

void rotate(Context& context, const RotaryTable& table, RotaryStyle style, std::span<const SequenceRows> sequences,
            std::int32_t num_heads, std::int32_t head_dim, float* x, std::int64_t stride) {
  const ElementwiseKernels& kernels = kernels_in_use<ElementwiseKernelsOf>();
  const std::int64_t elements = std::int64_t{num_heads} * table.rotary_dim();
  for (const SequenceRows& sequence : sequences) {
    for_ranges(context, sequence.num_rows, elements, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t position = sequence.position + row;
        kernels.rotate(style, table.cosines(position), table.sines(position), table.rotary_dim() / 2, num_heads,
                       head_dim, x + (sequence.first_row + row) * stride);
      }
    });
  }
}

}  // namespace pocket
