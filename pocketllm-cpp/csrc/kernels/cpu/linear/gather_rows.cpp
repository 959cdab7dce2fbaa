#include "kernels/linear.h"

namespace pocket {
namespace {

// A row of a few hundred columns takes about a microsecond.
constexpr std::int64_t kRowsPerTask = 8;

}  // namespace

void gather_rows(Context& context, DType dtype, const std::byte* table, std::int64_t num_columns,
                 std::span<const std::int32_t> ids, float* out) {
  const auto count = static_cast<std::int64_t>(ids.size());
  const std::size_t stored_bytes = row_bytes(dtype, num_columns);
  context.threads.run((count + kRowsPerTask - 1) / kRowsPerTask, [&](std::int64_t task, int) {
    const std::int64_t end = count < (task + 1) * kRowsPerTask ? count : (task + 1) * kRowsPerTask;
    for (std::int64_t index = task * kRowsPerTask; index < end; ++index) {
      const auto id = static_cast<std::size_t>(ids[static_cast<std::size_t>(index)]);
      dequantize_row(dtype, table + id * stored_bytes, num_columns, out + index * num_columns);
    }
  });
}

}  // namespace pocket
