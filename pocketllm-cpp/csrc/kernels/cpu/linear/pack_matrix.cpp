#include <algorithm>
#include <array>

#include "kernels/cpu/linear/matrix.h"
#include "kernels/cpu/linear/pack.h"

namespace pocket::cpu {
namespace {

constexpr std::int64_t kStripsPerTask = 8;

bool is_plain_weight(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF8E4M3;
}

bool has_scales(const MatrixPart& part) { return part.dtype == DType::kF8E4M3 && part.scales != nullptr; }

std::int64_t stored_row(const MatrixPart& part, std::int64_t row) {
  return part.source_rows == nullptr ? row : part.source_rows[row];
}

MatrixSegment segment_of(const MatrixPart& part, std::int64_t num_columns) {
  MatrixSegment segment;
  segment.dtype = part.dtype;
  if (!is_plain_weight(part.dtype)) {
    segment.strip_bytes = packed_form(part.dtype).strip_bytes(num_units_of(num_columns));
    return segment;
  }
  segment.strip_bytes = plain_code_bytes(num_columns, info(part.dtype).block_bytes);
  if (part.dtype == DType::kF8E4M3) {
    segment.scale_columns = has_scales(part) ? std::min(part.scale_columns, num_columns) : num_columns;
    const std::int64_t num_tiles = (num_columns + segment.scale_columns - 1) / segment.scale_columns;
    segment.strip_bytes += num_tiles * kLineBytes;
  }
  return segment;
}

// Where a strip's rows come from; a strip may begin in one part and end in the next.
struct StripSource {
  std::array<const MatrixPart*, kStripRows> part{};
  std::array<std::int64_t, kStripRows> row{};  // in the part's `data`
  std::array<const std::byte*, kStripRows> data{};
};

void write_scales(const StripSource& source, const MatrixSegment& segment, std::int64_t num_columns, float* out) {
  const std::int64_t num_tiles = (num_columns + segment.scale_columns - 1) / segment.scale_columns;
  for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
    for (std::size_t row = 0; row < kStripRows; ++row) {
      const MatrixPart* part = source.part[row];
      float scale = 0.0f;
      if (part != nullptr) {
        scale = 1.0f;
        if (has_scales(*part)) {
          const std::int64_t tiles_across = (num_columns + part->scale_columns - 1) / part->scale_columns;
          scale = part->scales[source.row[row] / part->scale_rows * tiles_across + tile];
        }
      }
      out[tile * kStripRows + static_cast<std::int64_t>(row)] = scale;
    }
  }
}

// A segment and the parts whose rows it stacks.
struct SegmentPlan {
  MatrixSegment segment;
  std::vector<const MatrixPart*> parts;
};

StripSource strip_source(const SegmentPlan& plan, std::int64_t num_columns, std::int64_t strip) {
  StripSource source;
  const std::size_t stored_bytes = row_bytes(plan.segment.dtype, num_columns);
  std::int64_t first = strip * kStripRows;  // in what is left of the segment
  std::size_t filled = 0;
  for (const MatrixPart* part : plan.parts) {
    for (; first < part->num_rows && filled < kStripRows; ++first, ++filled) {
      source.part[filled] = part;
      source.row[filled] = stored_row(*part, first);
      source.data[filled] = part->data + static_cast<std::size_t>(source.row[filled]) * stored_bytes;
    }
    first = std::max<std::int64_t>(0, first - part->num_rows);
    if (filled == kStripRows) break;
  }
  return source;
}

std::vector<SegmentPlan> plan_segments(std::span<const MatrixPart> parts, std::int64_t num_columns) {
  std::vector<SegmentPlan> plans;
  std::int64_t first_row = 0;
  for (const MatrixPart& part : parts) {
    if (part.num_rows == 0) continue;
    MatrixSegment segment = segment_of(part, num_columns);
    const MatrixSegment* last = plans.empty() ? nullptr : &plans.back().segment;
    if (last == nullptr || last->dtype != segment.dtype || last->scale_columns != segment.scale_columns) {
      segment.first_row = first_row;
      plans.push_back({segment, {}});
    }
    plans.back().segment.num_rows += part.num_rows;
    plans.back().parts.push_back(&part);
    first_row += part.num_rows;
  }
  std::size_t offset = 0;
  for (SegmentPlan& plan : plans) {
    plan.segment.num_strips = (plan.segment.num_rows + kStripRows - 1) / kStripRows;
    plan.segment.offset = offset;
    offset += static_cast<std::size_t>(plan.segment.num_strips * plan.segment.strip_bytes);
  }
  return plans;
}

void pack_strip(const SegmentPlan& plan, std::int64_t num_columns, std::int64_t strip, std::byte* out) {
  const MatrixSegment& segment = plan.segment;
  const StripSource source = strip_source(plan, num_columns, strip);
  if (!is_plain_weight(segment.dtype)) return pack_block_strip(segment.dtype, source.data, num_columns, out);
  pack_plain_strip(segment.dtype, source.data, num_columns, out);
  if (segment.dtype == DType::kF8E4M3) {
    write_scales(source, segment, num_columns, reinterpret_cast<float*>(out + plain_code_bytes(num_columns, 1)));
  }
}

}  // namespace

std::unique_ptr<const Matrix> pack_matrix(Context& context, std::span<const MatrixPart> parts, std::int64_t num_columns,
                                          Activation activation) {
  const std::vector<SegmentPlan> plans = plan_segments(parts, num_columns);
  std::vector<MatrixSegment> segments;
  std::int64_t num_rows = 0;
  std::size_t num_bytes = 0;
  for (const SegmentPlan& plan : plans) {
    segments.push_back(plan.segment);
    num_rows += plan.segment.num_rows;
    num_bytes += static_cast<std::size_t>(plan.segment.num_strips * plan.segment.strip_bytes);
  }
  PackedMemory memory = packed_memory(num_bytes);
  for (const SegmentPlan& plan : plans) {
    const MatrixSegment& segment = plan.segment;
    const std::int64_t num_tasks = (segment.num_strips + kStripsPerTask - 1) / kStripsPerTask;
    context.threads.run(num_tasks, [&](std::int64_t task, int) {
      const std::int64_t end = std::min(segment.num_strips, (task + 1) * kStripsPerTask);
      for (std::int64_t strip = task * kStripsPerTask; strip < end; ++strip) {
        pack_strip(plan, num_columns, strip, memory.data + segment.offset + strip * segment.strip_bytes);
      }
    });
  }
  return std::make_unique<PackedMatrix>(context.device, num_rows, num_columns, activation, std::move(segments),
                                        std::move(memory));
}

}  // namespace pocket::cpu
