#include "kernels/delta_net.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/delta_net/kernels.h"
#include "kernels/cpu/delta_net/states.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/simd/dispatch.h"

namespace pocket::cpu {
namespace {

constexpr std::int64_t kVector = 16;
// Multiplications below which waking threads costs more than it saves.
constexpr std::int64_t kMinParallelWork = std::int64_t{1} << 16;
// How many rows ahead inputs are fetched.
constexpr std::int64_t kRowsAhead = 4;

std::int64_t round_up(std::int64_t value) noexcept { return (value + kVector - 1) / kVector * kVector; }

double softplus(double x) noexcept { return x > 30.0 ? x : std::log1p(std::exp(x)); }

// One key head of one sequence, with the value heads that read it. Channels and states of heads are disjoint, so tasks
// share nothing.
class HeadTask {
 public:
  HeadTask(const DeltaNetKernels& kernels, DeltaNetStates& states, std::int32_t layer, const DeltaNetWeights& weights,
           const DeltaNetInputs& inputs, float* out, std::int64_t out_stride, const SequenceRows& sequence,
           std::int32_t key_head)
      : kernels_(kernels),
        shape_(states.shape()),
        weights_(weights),
        inputs_(inputs),
        out_(out),
        out_stride_(out_stride),
        sequence_(sequence),
        key_head_(key_head),
        recurrent_(recurrent(states, sequence.state_slot, layer)),
        tail_(conv_tail(states, sequence.state_slot, layer)),
        value_heads_per_key_(shape_.num_value_heads / shape_.num_key_heads) {}

  static std::int64_t memory_floats(const DeltaNetShape& shape) noexcept {
    const std::int64_t key = round_up(shape.key_dim);
    const std::int64_t value = round_up(shape.value_dim);
    return kSegmentRows * (2 * key + 2 * value + 4 * kSegmentRows + kStrip) +
           shape.key_dim * (2 * kSegmentRows + kStrip + value) + shape.kernel_size * taps_stride(shape);
  }

  void run(float* memory) {
    place(memory);
    for (std::int64_t begin = 0; begin < sequence_.num_rows;) {
      std::int64_t num_rows = 1;
      if (sequence_.chunked) {
        const std::int64_t in_segment = (sequence_.position + begin) % kSegmentRows;
        num_rows = std::min(kSegmentRows - in_segment, sequence_.num_rows - begin);
      }
      run_rows(begin, num_rows);
      begin += num_rows;
    }
    move_tails();
  }

 private:
  std::int32_t value_head(std::int32_t index) const noexcept {
    return shape_.tiled_value_heads ? key_head_ + index * shape_.num_key_heads
                                    : key_head_ * value_heads_per_key_ + index;
  }
  std::int64_t query_channel() const noexcept { return std::int64_t{key_head_} * shape_.key_dim; }
  std::int64_t key_channel() const noexcept {
    return std::int64_t{shape_.num_key_heads + key_head_} * shape_.key_dim;
  }
  std::int64_t value_channel(std::int32_t head) const noexcept {
    return std::int64_t{2} * shape_.num_key_heads * shape_.key_dim + std::int64_t{head} * shape_.value_dim;
  }
  // The taps of the key head's query, key and values lie side by side.
  static std::int64_t taps_stride(const DeltaNetShape& shape) noexcept {
    return 2 * round_up(shape.key_dim) + shape.num_value_heads / shape.num_key_heads * round_up(shape.value_dim);
  }

  void place(float* memory) {
    DeltaNetScratch& s = scratch_;
    s.key_dim = shape_.key_dim;
    s.padded_key = round_up(shape_.key_dim);
    s.padded_value = round_up(shape_.value_dim);
    const auto take = [&](std::int64_t count) {
      float* taken = memory;
      memory += count;
      return taken;
    };
    s.queries = take(kSegmentRows * s.padded_key);
    s.keys = take(kSegmentRows * s.padded_key);
    s.values = take(kSegmentRows * s.padded_value);
    s.outputs = take(kSegmentRows * s.padded_value);
    s.corrected = take(kSegmentRows * kStrip);
    s.query_key = take(kSegmentRows * kSegmentRows);
    s.key_key = take(kSegmentRows * kSegmentRows);
    s.solve = take(kSegmentRows * kSegmentRows);
    s.attend = take(kSegmentRows * kSegmentRows);
    s.transposed_keys = take(s.key_dim * kSegmentRows);
    s.scaled_keys = take(s.key_dim * kSegmentRows);
    s.state_strip = take(s.key_dim * kStrip);
    state_copy_ = take(s.key_dim * s.padded_value);
    taps_ = take(shape_.kernel_size * taps_stride(shape_));
    // Padding must be zero; rows are written over and over, but never their padding.
    if (s.padded_value != shape_.value_dim) {
      std::memset(s.values, 0, static_cast<std::size_t>(kSegmentRows * s.padded_value) * sizeof(float));
      std::memset(state_copy_, 0, static_cast<std::size_t>(s.key_dim * s.padded_value) * sizeof(float));
    }
    const std::int64_t stride = taps_stride(shape_);
    const auto transpose = [&](std::int64_t channel, std::int64_t count, std::int64_t at) {
      kernels_.transpose_taps(weights_.conv + channel * shape_.kernel_size, shape_.kernel_size, count, stride,
                              taps_ + at);
    };
    transpose(query_channel(), shape_.key_dim, 0);
    transpose(key_channel(), shape_.key_dim, s.padded_key);
    for (std::int32_t index = 0; index < value_heads_per_key_; ++index) {
      transpose(value_channel(value_head(index)), shape_.value_dim, value_taps(index));
    }
  }

  std::int64_t row_ahead(std::int64_t row) const noexcept {
    return std::min<std::int64_t>(row + kRowsAhead, sequence_.num_rows - 1);
  }

  std::int64_t value_taps(std::int32_t index) const noexcept {
    return 2 * scratch_.padded_key + index * scratch_.padded_value;
  }

  // out [num_rows, stride] = silu(convolution) of `count` channels.
  void convolve(std::int64_t begin, std::int64_t num_rows, std::int64_t channel, std::int64_t count,
                std::int64_t taps, float* out, std::int64_t stride) const {
    const std::int64_t num_before = shape_.kernel_size - 1;
    std::vector<const float*>& rows = tap_rows_;
    rows.resize(static_cast<std::size_t>(shape_.kernel_size));
    for (std::int64_t row = 0; row < num_rows; ++row) {
      for (std::int64_t t = 0; t <= num_before; ++t) {
        const std::int64_t from = begin + row - num_before + t;
        rows[static_cast<std::size_t>(t)] =
            from < 0 ? tail_ + (from + num_before) * shape_.conv_channels() + channel
                     : inputs_.mixed + (sequence_.first_row + from) * inputs_.mixed_stride + channel;
      }
      const std::int64_t later = sequence_.first_row + row_ahead(begin + row);
      const float* next = inputs_.mixed + later * inputs_.mixed_stride + channel;
      kernels_.convolve(rows.data(), next, taps_ + taps, shape_.kernel_size, count, taps_stride(shape_),
                        out + row * stride);
    }
  }

  void run_rows(std::int64_t begin, std::int64_t num_rows) {
    const DeltaNetScratch& s = scratch_;
    convolve(begin, num_rows, query_channel(), s.key_dim, 0, s.queries, s.padded_key);
    convolve(begin, num_rows, key_channel(), s.key_dim, s.padded_key, s.keys, s.padded_key);
    const float query_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.key_dim)));
    for (std::int64_t row = 0; row < num_rows; ++row) {
      kernels_.normalize(s.key_dim, query_factor, s.queries + row * s.padded_key);
      kernels_.normalize(s.key_dim, 1.0f, s.keys + row * s.padded_key);
    }
    if (sequence_.chunked) kernels_.compare_keys(s, num_rows);
    for (std::int32_t index = 0; index < value_heads_per_key_; ++index) {
      const std::int32_t head = value_head(index);
      convolve(begin, num_rows, value_channel(head), shape_.value_dim, value_taps(index), s.values, s.padded_value);
      run_head(begin, num_rows, head);
    }
  }

  void run_head(std::int64_t begin, std::int64_t num_rows, std::int32_t head) {
    find_gates(begin, num_rows, head);
    float* state = recurrent_ + std::int64_t{head} * shape_.key_dim * shape_.value_dim;
    const bool padded = scratch_.padded_value != shape_.value_dim;
    scratch_.state = padded ? state_copy_ : state;
    if (padded) copy_state(state, shape_.value_dim, state_copy_, scratch_.padded_value);
    if (sequence_.chunked) {
      kernels_.segment(scratch_, gates_, num_rows);
    } else {
      kernels_.step(scratch_, gates_.decay[0], gates_.beta[0]);
    }
    if (padded) copy_state(state_copy_, scratch_.padded_value, state, shape_.value_dim);
    for (std::int64_t row = 0; row < num_rows; ++row) {
      const std::int64_t at = sequence_.first_row + begin + row;
      const std::int64_t offset = std::int64_t{head} * shape_.value_dim;
      const std::int64_t later = sequence_.first_row + row_ahead(begin + row);
      kernels_.finish(scratch_.outputs + row * scratch_.padded_value, inputs_.z + at * inputs_.z_stride + offset,
                      inputs_.z + later * inputs_.z_stride + offset, weights_.norm, weights_.eps, shape_.value_dim,
                      out_ + at * out_stride_ + offset);
    }
  }

  void copy_state(const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride) const {
    for (std::int64_t k = 0; k < shape_.key_dim; ++k) {
      std::memcpy(to + k * to_stride, from + k * from_stride,
                  static_cast<std::size_t>(shape_.value_dim) * sizeof(float));
    }
  }

  void find_gates(std::int64_t begin, std::int64_t num_rows, std::int32_t head) {
    double cumulative = 0.0;
    for (std::int64_t row = 0; row < num_rows; ++row) {
      const std::int64_t at = sequence_.first_row + begin + row;
      const double alpha = inputs_.alpha[at * inputs_.alpha_stride + head];
      const double beta = inputs_.beta[at * inputs_.beta_stride + head];
      const double g = double{weights_.decay[head]} * softplus(alpha + double{weights_.dt_bias[head]});
      cumulative += g;
      gates_.decay[row] = static_cast<float>(std::exp(g));
      gates_.beta[row] = static_cast<float>(1.0 / (1.0 + std::exp(-beta)));
      gates_.high[row] = static_cast<float>(cumulative);
      gates_.low[row] = static_cast<float>(cumulative - double{gates_.high[row]});
    }
  }

  // The last kernel_size - 1 rows of the head's channels, from the old tail where there are fewer new rows.
  void move_tails() {
    move_tail(query_channel(), shape_.key_dim);
    move_tail(key_channel(), shape_.key_dim);
    for (std::int32_t index = 0; index < value_heads_per_key_; ++index) {
      move_tail(value_channel(value_head(index)), shape_.value_dim);
    }
  }
  void move_tail(std::int64_t channel, std::int64_t count) {
    const std::int64_t num_before = shape_.kernel_size - 1;
    const std::size_t num_bytes = static_cast<std::size_t>(count) * sizeof(float);
    for (std::int64_t tail_row = 0; tail_row < num_before; ++tail_row) {
      const std::int64_t from = sequence_.num_rows - num_before + tail_row;
      const float* row = from < 0 ? tail_ + (from + num_before) * shape_.conv_channels() + channel
                                  : inputs_.mixed + (sequence_.first_row + from) * inputs_.mixed_stride + channel;
      std::memcpy(tail_ + tail_row * shape_.conv_channels() + channel, row, num_bytes);
    }
  }

  const DeltaNetKernels& kernels_;
  const DeltaNetShape& shape_;
  const DeltaNetWeights& weights_;
  const DeltaNetInputs& inputs_;
  float* out_;
  std::int64_t out_stride_;
  const SequenceRows& sequence_;
  std::int32_t key_head_;
  float* recurrent_;
  float* tail_;
  std::int32_t value_heads_per_key_;
  DeltaNetScratch scratch_;
  DeltaNetGates gates_{};
  float* state_copy_ = nullptr;
  float* taps_ = nullptr;
  mutable std::vector<const float*> tap_rows_;
};

void delta_net(Context& context, DeltaNetStates& states, std::int32_t layer, const DeltaNetWeights& weights,
               const SequenceTable& table, const DeltaNetInputs& inputs, float* out, std::int64_t out_stride) {
  check_device(context, states.device(), "A recurrent state");
  const std::span<const SequenceRows> sequences = table.rows();
  const DeltaNetKernels& kernels = kernels_in_use<DeltaNetKernelsOf>();
  const DeltaNetShape& shape = states.shape();
  const std::int64_t num_tasks = static_cast<std::int64_t>(sequences.size()) * shape.num_key_heads;
  const auto run_task = [&](std::int64_t index, int) {
    thread_local Buffer memory;
    const SequenceRows& sequence = sequences[static_cast<std::size_t>(index / shape.num_key_heads)];
    if (sequence.num_rows == 0) return;
    const auto key_head = static_cast<std::int32_t>(index % shape.num_key_heads);
    HeadTask task(kernels, states, layer, weights, inputs, out, out_stride, sequence, key_head);
    task.run(memory.reserve<float>(static_cast<std::size_t>(HeadTask::memory_floats(shape))));
  };
  std::int64_t num_rows = 0;
  for (const SequenceRows& sequence : sequences) num_rows += sequence.num_rows;
  if (3 * num_rows * shape.num_value_heads * shape.key_dim * shape.value_dim < kMinParallelWork) {
    for (std::int64_t index = 0; index < num_tasks; ++index) run_task(index, 0);
  } else {
    context.threads.run(num_tasks, run_task);
  }
}

}  // namespace

void add_delta_net(Operations& table) noexcept {
  table.delta_net_slot_bytes = [](const DeltaNetShape& shape) {
    return static_cast<std::size_t>(layer_floats(shape) * shape.num_layers) * sizeof(float);
  };
  table.delta_net = delta_net;
}

}  // namespace pocket::cpu
