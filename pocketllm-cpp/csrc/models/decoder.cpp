#include "models/decoder.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"

namespace pocket {
namespace {

CacheSpec cache_spec(const LoadRequest& request, LayerKind kind) {
  const ModelConfig& config = request.config;
  if (kind == LayerKind::kLinearAttention) {
    DeltaNetShape layer = *config.delta_net;
    layer.num_layers = 1;
    return RecurrentSpec{delta_net_slot_bytes(request.context, layer), DeltaNetShape::kSegmentLength};
  }
  return KeyValueSpec{static_cast<std::int32_t>(config.num_kv_heads), static_cast<std::int32_t>(config.head_dim),
                      kind == LayerKind::kSlidingAttention ? config.sliding_window : 0};
}

ModelShape shape_of(const LoadRequest& request) {
  const ModelConfig& config = request.config;
  ModelShape shape;
  shape.model_type = config.model_type;
  shape.vocab_size = config.vocab_size;
  shape.hidden_size = config.hidden_size;
  shape.num_layers = config.num_layers;
  shape.max_positions = request.options.max_positions > 0 ? request.options.max_positions : config.max_positions;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    shape.caches.push_back(cache_spec(request, config.layers[static_cast<std::size_t>(layer)]));
  }
  return shape;
}

[[noreturn]] void fail_step(const std::string& what) {
  throw Error(ErrorKind::kEngine, "A step is not well formed: " + what + ".");
}

}  // namespace

std::int32_t LoadRequest::num_layers_before(std::int64_t layer, bool linear) const {
  const auto first = config.layers.begin();
  return static_cast<std::int32_t>(std::count_if(first, first + layer, [&](LayerKind kind) {
    return (kind == LayerKind::kLinearAttention) == linear;
  }));
}

Decoder::Decoder(const LoadRequest& request, WeightReader& weights, float embedding_scale,
                 std::vector<std::unique_ptr<RotaryAngles>> angles, const MakeLayer& make_layer)
    : activation_(request.options.activation),
      shape_(shape_of(request)),
      angles_(std::move(angles)),
      embedding_(request.context,
                 weights.table("model.embed_tokens.weight", request.config.vocab_size, request.config.hidden_size),
                 embedding_scale) {
  const ModelConfig& config = request.config;
  const double num_parts = static_cast<double>(config.num_layers + 1);
  for (std::int64_t index = 0; index < config.num_layers; ++index) {
    layers_.push_back(make_layer(index));
    if (request.progress) request.progress(static_cast<double>(index + 1) / num_parts);
  }
  final_norm_ = {weights.norm("model.norm.weight", config.hidden_size), config.hidden_size,
                 static_cast<float>(config.rms_norm_eps)};
  const bool tied = config.tied_head || !weights.has("lm_head.weight");
  const char* head = tied ? "model.embed_tokens.weight" : "lm_head.weight";
  head_ = weights.matrix({{.name = head, .num_rows = config.vocab_size}}, config.hidden_size);
  weights.check_all_read(config.num_layers);
  shape_.weights_bytes = weights.packed_bytes();
  shape_.bytes_per_token = weights.bytes_per_token();
  if (request.progress) request.progress(1.0);
}

void Decoder::forward(Context& context, const Step& step, Caches& caches, float* logits) {
  if (step.tokens.empty()) return;
  check(step, caches.kv.shape().block_size);
  std::int64_t num_positions = 0;
  for (const SequenceRows& rows : step.sequences) {
    num_positions = std::max(num_positions, rows.position + rows.num_rows);
  }
  for (const std::unique_ptr<RotaryAngles>& angles : angles_) angles->cover(context, num_positions);

  const std::int64_t num_rows = static_cast<std::int64_t>(step.tokens.size());
  const std::int64_t num_wanted = static_cast<std::int64_t>(step.logit_rows.size());
  const std::int64_t size = shape_.hidden_size;
  float* x = work_.residual.reserve<float>(context.device, static_cast<std::size_t>(num_rows * size));
  embedding_.look_up(context, step.tokens, x);
  sequences_.assign(context, step.sequences);
  LayerCall call{.context = context,
                 .caches = caches,
                 .work = work_,
                 .activation = activation_,
                 .sequences = sequences_,
                 .num_rows = num_rows,
                 .kept_sequences = &sequences_,
                 .num_kept = num_rows};
  for (std::size_t index = 0; index < layers_.size(); ++index) {
    if (index + 1 == layers_.size() && num_wanted != num_rows) {
      // No later layer reads the other rows' results: the last one only takes them into the caches.
      plan_kept_sequences(step);
      kept_table_.assign(context, kept_sequences_);
      std::int32_t* kept = kept_rows_.reserve<std::int32_t>(context.device, step.logit_rows.size());
      copy_from_host(context, step.logit_rows, kept);
      call.kept = kept;
      call.kept_sequences = &kept_table_;
      call.num_kept = num_wanted;
    }
    layers_[index]->run(call, x);
  }
  if (num_wanted == 0) return;
  float* normed = work_.normed.reserve<float>(context.device, static_cast<std::size_t>(num_wanted * size));
  final_norm_.apply(context, num_wanted, x, normed);
  work_.normed_rows.assign(context, normed, num_wanted, size, size, activation_);
  multiply(context, *head_, work_.normed_rows, nullptr, logits, shape_.vocab_size, Store::kAssign);
}

void Decoder::check(const Step& step, std::int64_t block_size) const {
  const std::int64_t num_rows = static_cast<std::int64_t>(step.tokens.size());
  std::int64_t next_row = 0;
  for (const SequenceRows& rows : step.sequences) {
    if (rows.first_row != next_row || rows.num_rows < 1 || rows.position < 0) fail_step("its sequences leave gaps");
    if (static_cast<std::int64_t>(rows.blocks.size()) * block_size < rows.position + rows.num_rows) {
      fail_step("a sequence has fewer cache blocks than positions");
    }
    next_row += rows.num_rows;
  }
  if (next_row != num_rows) fail_step("its sequences do not cover its tokens");
  std::int64_t last = -1;
  for (const std::int32_t row : step.logit_rows) {
    if (row <= last || row >= num_rows) fail_step("its logit rows are not ascending rows of it");
    last = row;
  }
}

void Decoder::plan_kept_sequences(const Step& step) {
  kept_sequences_.clear();
  std::size_t sequence = 0;
  std::size_t last_sequence = step.sequences.size();
  for (std::size_t index = 0; index < step.logit_rows.size(); ++index) {
    const std::int32_t row = step.logit_rows[index];
    while (row >= step.sequences[sequence].first_row + step.sequences[sequence].num_rows) ++sequence;
    const SequenceRows& whole = step.sequences[sequence];
    const std::int64_t position = whole.position + (row - whole.first_row);
    if (sequence == last_sequence && kept_sequences_.back().position + kept_sequences_.back().num_rows == position) {
      ++kept_sequences_.back().num_rows;
      continue;
    }
    SequenceRows kept = whole;
    kept.first_row = static_cast<std::int32_t>(index);
    kept.num_rows = 1;
    kept.position = position;
    kept_sequences_.push_back(kept);
    last_sequence = sequence;
  }
}

}  // namespace pocket
