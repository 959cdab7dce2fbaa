#include <algorithm>

#include "kernels/cpu/linear/matrix.h"
#include "kernels/dequantize.h"

namespace pocket::cpu {
namespace {

// A row of a few hundred columns takes about a microsecond.
constexpr std::int64_t kRowsPerTask = 8;

}  // namespace

void gather_rows(Context& context, DType dtype, const std::byte* table, std::int64_t num_columns,
                 const std::int32_t* ids, std::int64_t num_ids, float* out) {
  const std::size_t stored_bytes = row_bytes(dtype, num_columns);
  context.threads.run((num_ids + kRowsPerTask - 1) / kRowsPerTask, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(num_ids, (task + 1) * kRowsPerTask);
    for (std::int64_t index = task * kRowsPerTask; index < end; ++index) {
      const auto id = static_cast<std::size_t>(ids[index]);
      dequantize_row(dtype, table + id * stored_bytes, num_columns, out + index * num_columns);
    }
  });
}

}  // namespace pocket::cpu
