// The contract's functions: each runs on the device of the context it is given.
#include "kernels/operations.h"

#include <string>
#include <utility>

#include "core/error.h"

namespace pocket {

void check_device(const Context& context, const Device& owner, const char* what) {
  if (&owner == &context.device) return;
  throw Error(ErrorKind::kEngine, std::string(what) + " of the device \"" + std::string(owner.name()) +
                                      "\" was given to an operation of the device \"" +
                                      std::string(context.device.name()) + "\".");
}

void SequenceTable::assign(Context& context, std::span<const SequenceRows> rows) {
  on_device_ = context.operations.keep_sequences(context, rows, std::move(on_device_));
  rows_ = rows;
}

void ActivationRows::assign(Context& context, const float* x, std::int64_t num_rows, std::int64_t num_columns,
                            std::int64_t stride, Activation activation) {
  if (on_device_ == nullptr) on_device_ = context.operations.make_activation_rows(context);
  context.operations.assign_activation_rows(context, *on_device_, x, num_rows, num_columns, stride, activation);
}

void multiply(Context& context, const Matrix& matrix, const ActivationRows& x, const float* bias, float* y,
              std::int64_t stride, Store store) {
  context.operations.multiply(context, matrix, x, bias, y, stride, store);
}

void gather_rows(Context& context, DType dtype, const std::byte* table, std::int64_t num_columns,
                 const std::int32_t* ids, std::int64_t num_ids, float* out) {
  context.operations.gather_rows(context, dtype, table, num_columns, ids, num_ids, out);
}

std::int32_t kv_block_size(const Context& context) noexcept { return context.operations.kv_block_size; }

std::size_t kv_block_bytes(const Context& context, const KvShape& shape) {
  if (shape.block_size != kv_block_size(context)) {
    throw Error(ErrorKind::kConfiguration, "The key-value cache of the device \"" + std::string(context.device.name()) +
                                               "\" has blocks of " + std::to_string(kv_block_size(context)) +
                                               " positions, not of " + std::to_string(shape.block_size) + ".");
  }
  return context.operations.kv_block_bytes(shape);
}

void store_kv(Context& context, KvCache& cache, std::int32_t layer, const SequenceTable& sequences, const float* k,
              const float* v, std::int64_t stride) {
  context.operations.store_kv(context, cache, layer, sequences, k, v, stride);
}

void load_kv(Context& context, const KvCache& cache, std::int32_t layer, std::int32_t block, std::int32_t position,
             std::span<float> k, std::span<float> v) {
  context.operations.load_kv(context, cache, layer, block, position, k, v);
}

void attend(Context& context, const KvCache& cache, std::int32_t layer, const AttentionShape& shape,
            const SequenceTable& sequences, const float* q, std::int64_t q_stride, float* out,
            std::int64_t out_stride) {
  context.operations.attend(context, cache, layer, shape, sequences, q, q_stride, out, out_stride);
}

std::size_t delta_net_slot_bytes(const Context& context, const DeltaNetShape& shape) {
  return context.operations.delta_net_slot_bytes(shape);
}

void delta_net(Context& context, DeltaNetStates& states, std::int32_t layer, const DeltaNetWeights& weights,
               const SequenceTable& sequences, const DeltaNetInputs& inputs, float* out, std::int64_t out_stride) {
  context.operations.delta_net(context, states, layer, weights, sequences, inputs, out, out_stride);
}

void rms_norm(Context& context, const NormShape& shape, const float* x, const float* weight, float* y) {
  context.operations.rms_norm(context, shape, x, weight, y);
}

void fill_rotary_table(Context& context, std::span<const double> inverse_frequencies, double factor,
                       std::int64_t num_positions, float* data) {
  context.operations.fill_rotary_table(context, inverse_frequencies, factor, num_positions, data);
}

void rotate(Context& context, const RotaryTable& table, RotaryStyle style, const SequenceTable& sequences,
            std::int32_t num_heads, std::int32_t head_dim, float* x, std::int64_t stride) {
  context.operations.rotate(context, table, style, sequences, num_heads, head_dim, x, stride);
}

void gated(Context& context, Gate gate_kind, std::int64_t num_rows, std::int64_t num_columns, const float* gate,
           const float* up, std::int64_t stride, float* y, std::int64_t y_stride) {
  context.operations.gated(context, gate_kind, num_rows, num_columns, gate, up, stride, y, y_stride);
}

void scale_rows(Context& context, std::int64_t num_elements, float factor, float* x) {
  context.operations.scale_rows(context, num_elements, factor, x);
}

void add_rows(Context& context, std::int64_t num_elements, const float* x, float* y) {
  context.operations.add_rows(context, num_elements, x, y);
}

void keep_rows(Context& context, const std::int32_t* rows, std::int64_t num_kept, std::int64_t width,
               std::int64_t stride, float* x) {
  context.operations.keep_rows(context, rows, num_kept, width, stride, x);
}

void route(Context& context, const RoutingShape& shape, const float* logits, std::int32_t* experts, float* weights) {
  context.operations.route(context, shape, logits, experts, weights);
}

void ExpertOrder::assign(Context& context, const RoutingShape& shape, const std::int32_t* experts) {
  if (on_device_ == nullptr) on_device_ = context.operations.make_expert_order(context);
  context.operations.assign_expert_order(context, *on_device_, shape, experts);
}

void multiply_selected(Context& context, ExpertMatrices matrices, const ExpertOrder& order, const float* x,
                       const ActivationRows& rows, Activation activation, float* y) {
  context.operations.multiply_selected(context, matrices, order, x, rows, activation, y);
}

void multiply_places(Context& context, ExpertMatrices matrices, const ExpertOrder& order, const float* x,
                     Activation activation, float* y) {
  context.operations.multiply_places(context, matrices, order, x, activation, y);
}

void combine_experts(Context& context, const ExpertOrder& order, const float* weights, float* outputs,
                     const SharedExpert& shared, std::int64_t width, float* y, Store store) {
  context.operations.combine_experts(context, order, weights, outputs, shared, width, y, store);
}

void sample(Context& context, const LogitRows& logits, std::span<const SamplingRow> rows,
            std::span<std::int32_t> tokens) {
  context.operations.sample(context, logits, rows, tokens);
}

std::vector<std::pair<std::int32_t, float>> top_logits(Context& context, const LogitRows& logits, std::int64_t row,
                                                       std::int64_t count) {
  return context.operations.top_logits(context, logits, row, count);
}

void log_probabilities(Context& context, const LogitRows& logits, std::span<const LogprobRow> rows,
                       std::span<TokenLogprob> results) {
  context.operations.log_probabilities(context, logits, rows, results);
}

}  // namespace pocket
