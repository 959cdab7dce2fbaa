// The table of a device's operations: one entry per operation of the headers beside this one, which say what each does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "kernels/context.h"
#include "kernels/delta_net.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/routing.h"
#include "kernels/sampling.h"
#include "kernels/sequence_rows.h"

namespace pocket {

// Pointers are to memory of the context's device where the headers do not say otherwise. An entry checks that the
// objects it is given are its device's (`own`, `check_device`).
struct Operations {
  // What the device keeps of a step's sequences, in place of what `kept` has; nullptr when it reads them as they are.
  std::unique_ptr<DeviceObject> (*keep_sequences)(Context&, std::span<const SequenceRows>,
                                                  std::unique_ptr<DeviceObject> kept);

  std::unique_ptr<const Matrix> (*pack_matrix)(Context&, std::span<const MatrixPart>, std::int64_t num_columns,
                                               Activation);
  // An object for rows of activations, empty; and what fills it.
  std::unique_ptr<DeviceObject> (*make_activation_rows)(Context&);
  void (*assign_activation_rows)(Context&, DeviceObject& rows, const float* x, std::int64_t num_rows,
                                 std::int64_t num_columns, std::int64_t stride, Activation);
  void (*multiply)(Context&, const Matrix&, const ActivationRows&, const float* bias, float* y, std::int64_t stride,
                   Store);
  void (*gather_rows)(Context&, DType, const std::byte* table, std::int64_t num_columns, const std::int32_t* ids,
                      std::int64_t num_ids, float* out);

  std::int32_t kv_block_size;
  std::size_t (*kv_block_bytes)(const KvShape&);
  void (*store_kv)(Context&, KvCache&, std::int32_t layer, const SequenceTable&, const float* k, const float* v,
                   std::int64_t stride);
  void (*load_kv)(Context&, const KvCache&, std::int32_t layer, std::int32_t block, std::int32_t position,
                  std::span<float> k, std::span<float> v);
  void (*attend)(Context&, const KvCache&, std::int32_t layer, const AttentionShape&, const SequenceTable&,
                 const float* q, std::int64_t q_stride, float* out, std::int64_t out_stride);

  std::size_t (*delta_net_slot_bytes)(const DeltaNetShape&);
  void (*delta_net)(Context&, DeltaNetStates&, std::int32_t layer, const DeltaNetWeights&, const SequenceTable&,
                    const DeltaNetInputs&, float* out, std::int64_t out_stride);

  void (*rms_norm)(Context&, const NormShape&, const float* x, const float* weight, float* y);
  void (*fill_rotary_table)(Context&, std::span<const double> inverse_frequencies, double factor,
                            std::int64_t num_positions, float* data);
  void (*rotate)(Context&, const RotaryTable&, RotaryStyle, const SequenceTable&, std::int32_t num_heads,
                 std::int32_t head_dim, float* x, std::int64_t stride);
  void (*gated)(Context&, Gate, std::int64_t num_rows, std::int64_t num_columns, const float* gate, const float* up,
                std::int64_t stride, float* y, std::int64_t y_stride);
  void (*scale_rows)(Context&, std::int64_t num_elements, float factor, float* x);
  void (*add_rows)(Context&, std::int64_t num_elements, const float* x, float* y);
  void (*keep_rows)(Context&, const std::int32_t* rows, std::int64_t num_kept, std::int64_t width, std::int64_t stride,
                    float* x);

  void (*route)(Context&, const RoutingShape&, const float* logits, std::int32_t* experts, float* weights);
  std::unique_ptr<DeviceObject> (*make_expert_order)(Context&);
  void (*assign_expert_order)(Context&, DeviceObject& order, const RoutingShape&, const std::int32_t* experts);
  void (*multiply_selected)(Context&, ExpertMatrices, const ExpertOrder&, const float* x, const ActivationRows& rows,
                            Activation, float* y);
  void (*multiply_places)(Context&, ExpertMatrices, const ExpertOrder&, const float* x, Activation, float* y);
  void (*combine_experts)(Context&, const ExpertOrder&, const float* weights, float* outputs, const SharedExpert&,
                          std::int64_t width, float* y, Store);

  void (*sample)(Context&, const LogitRows&, std::span<const SamplingRow>, std::span<std::int32_t> tokens);
  std::vector<std::pair<std::int32_t, float>> (*top_logits)(Context&, const LogitRows&, std::int64_t row,
                                                            std::int64_t count);
  void (*log_probabilities)(Context&, const LogitRows&, std::span<const LogprobRow>, std::span<TokenLogprob>);
};

}  // namespace pocket
