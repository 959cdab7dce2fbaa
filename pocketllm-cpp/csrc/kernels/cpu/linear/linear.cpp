#include <algorithm>
#include <array>
#include <string>

#include "core/error.h"
#include "kernels/cpu/linear/matrix.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/simd/dispatch.h"

namespace pocket::cpu {
namespace {

// Work below this is not worth handing to another thread: about the time of two hand-outs.
constexpr std::int64_t kTaskBytes = 24 << 10;      // of weights, for one row
constexpr std::int64_t kTaskProducts = 1 << 20;    // multiplications, for several rows
constexpr std::int64_t kTasksPerThread = 8;
constexpr std::int64_t kRowsPerAssignTask = 4;
// Two panels of so many columns, with six rows of activations, fill most of a first-level cache of 48 KiB.
constexpr std::int64_t kPanelUnits = 12;
constexpr int kTaskRows = 256;  // more rows are split, so that few strips still give enough tasks

// Memory of one thread (one piece per T) that lives as long as the thread: it is wanted again by the next product.
template <class T>
T* thread_scratch(std::int64_t count) {
  thread_local Buffer buffer;
  return buffer.reserve<T>(static_cast<std::size_t>(count));
}

bool is_block_segment(const MatrixSegment& segment) { return packed_form(segment.dtype).code_bits != 0; }

// What the format's accumulators start from, for every row and group of columns.
class GroupStarts {
 public:
  void assign(const LinearKernels& kernels, const PackedForm& form, const QuantisableRows& x) {
    num_groups_ = x.num_units * form.unit_groups();
    const std::int64_t count = x.num_rows * num_groups_;
    const std::int32_t offset = form.offset - (form.wide() ? kernels.wide_offset : 0);
    const auto* sums = x.sums.as<std::int32_t>();
    std::int32_t* starts = buffer_.reserve<std::int32_t>(static_cast<std::size_t>(count));
    float* floats = buffer_.as<float>();
    // One loop each, so that a compiler vectorises them.
    if (form.group == 32 && form.has_min) {
      for (std::int64_t i = 0; i < count; ++i) floats[i] = static_cast<float>(sums[2 * i] + sums[2 * i + 1]);
    } else if (form.group == 32) {
      for (std::int64_t i = 0; i < count; ++i) starts[i] = kMagicBits - offset * (sums[2 * i] + sums[2 * i + 1]);
    } else if (form.has_min) {
      for (std::int64_t i = 0; i < count; ++i) floats[i] = static_cast<float>(sums[i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) starts[i] = kMagicBits - offset * sums[i];
    }
  }

  // The rows from `first` on, and in them the columns from unit `unit` on.
  QuantisedRows rows(const QuantisableRows& x, std::int64_t first, std::int64_t unit) const {
    const std::int64_t group = first * num_groups_ + unit * (num_groups_ / x.num_units);
    return {x.codes.as<std::int8_t>() + (first * x.num_units + unit) * kUnitColumns,
            x.num_units * kUnitColumns,
            x.scales.as<float>() + (first * x.num_units + unit) * 2,
            x.num_units * 2,
            buffer_.as<std::int32_t>() + group,
            buffer_.as<float>() + group,
            num_groups_};
  }

 private:
  std::int64_t num_groups_ = 0;
  Buffer buffer_;
};

// One segment's product with all rows, cut into tasks.
struct SegmentProduct {
  const LinearKernels& kernels;
  const PackedMatrix& matrix;
  const MatrixSegment& segment;
  const QuantisableRows& x;
  ProductOutput output;  // of row 0 and the segment's first column
  const GroupStarts* starts;

  ProductOutput output_at(std::int64_t row, std::int64_t strip) const {
    ProductOutput there = output;
    there.y += row * output.stride + strip * kStripRows;
    if (there.bias != nullptr) there.bias += strip * kStripRows;
    there.num_columns -= strip * kStripRows;
    return there;
  }

  void one_row(std::int64_t first, std::int64_t end) const {
    kernels.multiply_row({segment.dtype, matrix.strip(segment, first), end - first, x.num_units, starts->rows(x, 0, 0),
                          output_at(0, first)});
  }

  // Two strips at a time, as panels of as many columns as the first cache holds, times all rows.
  void blocks(std::int64_t first, std::int64_t end, std::int64_t first_row, std::int64_t num_rows) const {
    const PackedForm form = packed_form(segment.dtype);
    const std::int64_t align = form.scales == ScaleKind::kSuper ? kSuperUnits : 1;
    const std::int64_t num_blocks = (x.num_units + kPanelUnits - 1) / kPanelUnits;
    const std::int64_t block_units = (x.num_units / align + num_blocks - 1) / num_blocks * align;
    const std::int64_t panel_bytes =
        block_units * form.unit_groups() * panel_group_bytes(form.group, form.has_min);
    std::byte* panels = thread_scratch<std::byte>(kPanelStrips * panel_bytes);
    float* partial = thread_scratch<float>(num_rows * kPartialColumns);
    for (std::int64_t strip = first; strip < end; strip += kPanelStrips) {
      const std::int64_t count = std::min<std::int64_t>(kPanelStrips, end - strip);
      for (std::int64_t unit = 0; unit < x.num_units; unit += block_units) {
        const std::int64_t num_units = std::min(block_units, x.num_units - unit);
        const std::byte* packed = matrix.strip(segment, strip) + form.strip_bytes(unit);
        for (std::int64_t i = 0; i < count; ++i) {
          kernels.expand_codes(segment.dtype, packed + i * segment.strip_bytes, num_units, panels + i * panel_bytes);
        }
        const bool is_last = unit + num_units == x.num_units;
        const std::byte* next = is_last ? matrix.strip(segment, strip + count) : packed + form.strip_bytes(num_units);
        const bool has_next = !is_last || strip + count < end;
        kernels.multiply_panels({form.group, form.has_min, form.wide(), panels, panel_bytes, static_cast<int>(count),
                                 num_units * form.unit_groups(), starts->rows(x, first_row, unit),
                                 static_cast<int>(num_rows), partial, unit == 0, is_last, output_at(first_row, strip),
                                 next, has_next ? form.strip_bytes(num_units) : 0, segment.strip_bytes});
      }
    }
  }

  void floats(std::int64_t first, std::int64_t end, std::int64_t first_row, std::int64_t num_rows) const {
    kernels.multiply_floats({segment.dtype, matrix.strip(segment, first), segment.strip_bytes, end - first,
                             x.num_columns, segment.scale_columns, x.x + first_row * x.stride, x.stride,
                             static_cast<int>(num_rows), output_at(first_row, first)});
  }

  // Block formats with exact activations: a few strips at a time as floats.
  void expanded(std::int64_t first, std::int64_t end, std::int64_t first_row, std::int64_t num_rows) const {
    constexpr std::int64_t kStrips = 4;
    const std::int64_t num_units = num_units_of(x.num_columns);
    const std::int64_t panel_floats = num_units * kUnitColumns * kStripRows;
    float* panels = thread_scratch<float>(kStrips * panel_floats);
    for (std::int64_t strip = first; strip < end; strip += kStrips) {
      const std::int64_t count = std::min(kStrips, end - strip);
      for (std::int64_t i = 0; i < count; ++i) {
        kernels.expand_floats(segment.dtype, matrix.strip(segment, strip + i), num_units, panels + i * panel_floats);
      }
      kernels.multiply_floats({DType::kF32, reinterpret_cast<const std::byte*>(panels),
                               panel_floats * static_cast<std::int64_t>(sizeof(float)), count, x.num_columns, 0,
                               x.x + first_row * x.stride, x.stride, static_cast<int>(num_rows),
                               output_at(first_row, strip)});
    }
  }

  void run(std::int64_t first, std::int64_t end, std::int64_t first_row, std::int64_t num_rows) const {
    if (!is_block_segment(segment)) return floats(first, end, first_row, num_rows);
    if (matrix.activation() == Activation::kFloat32) return expanded(first, end, first_row, num_rows);
    if (x.num_rows == 1) return one_row(first, end);
    blocks(first, end, first_row, num_rows);
  }
};

void multiply_segment(Context& context, const SegmentProduct& product) {
  const std::int64_t num_rows = product.x.num_rows;
  const MatrixSegment& segment = product.segment;
  const std::int64_t num_row_tasks = (num_rows + kTaskRows - 1) / kTaskRows;
  // Strips are handed out in fours where that leaves enough tasks: plain types go through four at a time.
  const std::int64_t step = num_rows == 1 || !is_block_segment(segment) ? 4 : kPanelStrips;
  const std::int64_t num_steps = (segment.num_strips + step - 1) / step;
  const std::int64_t worth = num_rows == 1
                                 ? segment.num_strips * segment.strip_bytes / kTaskBytes
                                 : segment.num_strips * kStripRows * product.x.num_columns * num_rows / kTaskProducts;
  const std::int64_t most = std::min(num_steps, context.threads.num_threads() * kTasksPerThread);
  const bool alone = context.threads.num_threads() == 1;
  const std::int64_t num_strip_tasks = alone ? 1 : std::clamp<std::int64_t>(worth, 1, most);
  context.threads.run(num_strip_tasks * num_row_tasks, [&](std::int64_t task, int) {
    const std::int64_t strip_task = task / num_row_tasks;
    const std::int64_t row_task = task % num_row_tasks;
    const std::int64_t first = num_steps * strip_task / num_strip_tasks * step;
    const std::int64_t end = std::min(segment.num_strips, num_steps * (strip_task + 1) / num_strip_tasks * step);
    const std::int64_t first_row = num_rows * row_task / num_row_tasks;
    product.run(first, end, first_row, num_rows * (row_task + 1) / num_row_tasks - first_row);
  });
}

}  // namespace

void assign_with(const LinearKernels& kernels, Context& context, const float* x, std::int64_t num_rows,
                 std::int64_t num_columns, std::int64_t stride, Activation activation, QuantisableRows& state) {
  state.x = x;
  state.num_rows = num_rows;
  state.num_columns = num_columns;
  state.stride = stride;
  state.activation = activation;
  state.num_units = num_units_of(num_columns);
  if (activation == Activation::kFloat32) return;
  const std::int64_t num_units = state.num_units;
  auto* codes = state.codes.reserve<std::int8_t>(static_cast<std::size_t>(num_rows * num_units * kUnitColumns));
  auto* scales = state.scales.reserve<float>(static_cast<std::size_t>(num_rows * num_units * 2));
  auto* sums = state.sums.reserve<std::int32_t>(static_cast<std::size_t>(num_rows * num_units * 4));
  context.threads.run((num_rows + kRowsPerAssignTask - 1) / kRowsPerAssignTask, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(num_rows, (task + 1) * kRowsPerAssignTask);
    for (std::int64_t row = task * kRowsPerAssignTask; row < end; ++row) {
      kernels.quantise_row(x + row * stride, num_columns, codes + row * num_units * kUnitColumns,
                           scales + row * num_units * 2, sums + row * num_units * 4);
    }
  });
}

void multiply_with(const LinearKernels& kernels, Context& context, const PackedMatrix& matrix,
                   const QuantisableRows& x, const float* bias, float* y, std::int64_t stride, Store store) {
  if (x.num_columns != matrix.num_columns() || x.activation != matrix.activation()) {
    throw Error(ErrorKind::kEngine, "activation rows of " + std::to_string(x.num_columns) +
                                        " columns do not fit a matrix of " + std::to_string(matrix.num_columns()) +
                                        " columns, or their Activation differs from the matrix's");
  }
  if (x.num_rows == 0) return;
  // Kept by the calling thread: its next product has rows of about this size.
  thread_local GroupStarts starts;
  for (const MatrixSegment& segment : matrix.segments()) {
    const bool quantised = is_block_segment(segment) && matrix.activation() == Activation::kInt8;
    if (quantised) starts.assign(kernels, packed_form(segment.dtype), x);
    const ProductOutput output{y + segment.first_row, stride, bias == nullptr ? nullptr : bias + segment.first_row,
                               store == Store::kAdd, segment.num_rows};
    multiply_segment(context, {kernels, matrix, segment, x, output, &starts});
  }
}

void assign_rows(Context& context, DeviceObject& rows, const float* x, std::int64_t num_rows, std::int64_t num_columns,
                 std::int64_t stride, Activation activation) {
  assign_with(kernels_in_use<LinearKernelsOf>(), context, x, num_rows, num_columns, stride, activation,
              own<QuantisableRows>(context, rows, "Activation rows"));
}

void multiply_rows(Context& context, const Matrix& matrix, const DeviceObject& rows, const float* bias, float* y,
                   std::int64_t stride, Store store) {
  multiply_with(kernels_in_use<LinearKernelsOf>(), context,
                own<const PackedMatrix>(context, matrix, "A weight matrix"),
                own<const QuantisableRows>(context, rows, "Activation rows"), bias, y, stride, store);
}

void add_linear(Operations& table) noexcept {
  table.pack_matrix = pack_matrix;
  table.make_activation_rows = [](Context& context) -> std::unique_ptr<DeviceObject> {
    return std::make_unique<QuantisableRows>(context.device);
  };
  table.assign_activation_rows = assign_rows;
  table.multiply = [](Context& context, const Matrix& matrix, const ActivationRows& x, const float* bias, float* y,
                      std::int64_t stride, Store store) {
    multiply_rows(context, matrix, x.on_device(), bias, y, stride, store);
  };
  table.gather_rows = gather_rows;
}

}  // namespace pocket::cpu
