// A model whose logits are a hash of what its sequence's cache holds: whatever the engine gets wrong about blocks,
// positions, copies or recurrent states shows as other tokens, and most of it as an exception.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/random_numbers.h"
#include "engine/runtime.h"
#include "kernels/attention.h"
#include "kernels/devices.h"
#include "models/model.h"

namespace fake {

using pocket::mix_bits;

struct Shape {
  std::int64_t vocab_size = 61;
  std::int64_t max_positions = 1024;
  bool recurrent = false;
};

class FakeModel : public pocket::Model {
 public:
  explicit FakeModel(const Shape& shape) {
    shape_.model_type = "fake";
    shape_.vocab_size = shape.vocab_size;
    shape_.hidden_size = kDims;
    shape_.num_layers = 1;
    shape_.max_positions = shape.max_positions;
    shape_.caches.push_back(pocket::KeyValueSpec{1, kDims});
    is_recurrent_ = shape.recurrent;
    if (!is_recurrent_) return;
    ++shape_.num_layers;
    shape_.caches.push_back(pocket::RecurrentSpec{sizeof(State), 64});
  }

  // Called at the start of each pass, on the engine's thread; may wait or throw.
  std::function<void(const pocket::Step&)> on_forward;

  const pocket::ModelShape& shape() const noexcept override { return shape_; }

  void forward(pocket::Context& context, const pocket::Step& step, pocket::Caches& caches, float* logits) override {
    if (on_forward) on_forward(step);
    std::vector<float> values(step.tokens.size() * kDims);
    hashes_.assign(step.tokens.size(), 0);
    require(caches.states != nullptr || !is_recurrent_, "no states");
    std::int32_t next_row = 0;
    for (const pocket::SequenceRows& rows : step.sequences) {
      require(rows.first_row == next_row && rows.num_rows > 0, "rows do not follow each other");
      next_row += rows.num_rows;
      check_blocks(rows, caches.kv.shape());
      History history = read(context, caches.kv, rows);
      State state = is_recurrent_ ? load(context, caches, rows) : State{};
      for (std::int32_t row = 0; row < rows.num_rows; ++row) {
        const auto index = static_cast<std::size_t>(rows.first_row + row);
        const std::int64_t position = rows.position + row;
        const std::int32_t token = step.tokens[index];
        require(token >= 0 && token < shape_.vocab_size, "a token outside the vocabulary");
        // The bits of chunked and single rows differ, as those of real recurrent layers do.
        state.hash = mix_bits(state.hash * 3 + static_cast<std::uint64_t>(token) * 2 + (rows.chunked ? 1 : 0));
        state.position = position + 1;
        history.chain = extend(history.chain, token);
        const std::uint64_t mark = is_recurrent_ ? state.hash : 0;
        history.marks = mix_bits(history.marks ^ mark % kMark);
        write(&values[index * kDims], token, position, history.chain, mark);
        hashes_[index] = mix_bits(history.chain ^ history.marks ^ mark);
      }
      if (is_recurrent_) store(context, caches, rows, state);
    }
    require(next_row == static_cast<std::int32_t>(step.tokens.size()), "rows are left over");
    const pocket::DeviceBuffer stored = pocket::copied(context, std::span<const float>(values));
    pocket::store_kv(context, caches.kv, 0, {context, step.sequences}, stored.as<float>(), stored.as<float>(), kDims);
    std::int32_t before = -1;
    std::vector<float> rows_of_logits;
    for (const std::int32_t row : step.logit_rows) {
      require(row > before && row < next_row, "logit rows do not ascend");
      before = row;
      const std::uint64_t hash = hashes_[static_cast<std::size_t>(row)];
      for (std::int64_t id = 0; id < shape_.vocab_size; ++id) rows_of_logits.push_back(logit(hash, id));
    }
    pocket::copy_from_host(context, std::span<const float>(rows_of_logits), logits);
  }

 private:
  static constexpr std::int32_t kDims = 8;
  static constexpr std::uint64_t kMark = 1024;  // small whole numbers are exact in half precision

  struct History {
    std::uint64_t chain = 1;
    std::uint64_t marks = 1;
  };
  struct State {  // zero at the start of a sequence
    std::uint64_t hash;
    std::int64_t position;
  };

  static void require(bool condition, const char* what) {
    if (!condition) throw std::logic_error(std::string{"the engine's plan is wrong: "} + what);
  }

  static std::uint64_t extend(std::uint64_t chain, std::int32_t token) {
    return mix_bits(chain + static_cast<std::uint64_t>(token + 1) * pocket::kGoldenGamma);
  }

  // Quarters between -3 and 3: equal logits are common.
  static float logit(std::uint64_t hash, std::int64_t id) {
    const std::uint64_t word = mix_bits(hash + static_cast<std::uint64_t>(id) * pocket::kGoldenGamma);
    return static_cast<float>(word % 25) * 0.25f - 3.0f;
  }

  static void write(float* values, std::int32_t token, std::int64_t position, std::uint64_t chain, std::uint64_t mark) {
    values[0] = static_cast<float>(token);
    values[1] = static_cast<float>(position % 1024 + 1);
    values[2] = static_cast<float>(position / 1024);
    values[3] = static_cast<float>(chain % kMark);
    values[4] = static_cast<float>(chain / kMark % kMark);
    values[5] = static_cast<float>(mark % kMark);
  }

  // What lies before the rows; every position must be what its place in the sequence says.
  static History read(pocket::Context& context, const pocket::KvCache& cache, const pocket::SequenceRows& rows) {
    History history;
    for (std::int64_t position = 0; position < rows.position; ++position) {
      const std::int32_t block_size = cache.shape().block_size;
      const std::int32_t block = rows.blocks[static_cast<std::size_t>(position / block_size)];
      float key[kDims], stored[kDims];
      pocket::load_kv(context, cache, 0, block, static_cast<std::int32_t>(position % block_size), key, stored);
      const auto value = [&](std::size_t dim) { return stored[dim]; };
      history.chain = extend(history.chain, static_cast<std::int32_t>(value(0)));
      require(value(1) == position % 1024 + 1 && value(2) == position / 1024, "a block of another position");
      const bool is_chained = value(3) == history.chain % kMark && value(4) == history.chain / kMark % kMark;
      require(is_chained, "a block of another text");
      history.marks = mix_bits(history.marks ^ static_cast<std::uint64_t>(value(5)));
    }
    return history;
  }

  static void check_blocks(const pocket::SequenceRows& rows, const pocket::KvShape& shape) {
    const std::int64_t num_positions = std::ssize(rows.blocks) * shape.block_size;
    require(num_positions >= rows.position + rows.num_rows, "too few blocks");
    for (const std::int32_t block : rows.blocks) {
      require(block >= 0 && block < shape.num_blocks, "a block that is none");
    }
  }

  static State load(pocket::Context& context, pocket::Caches& caches, const pocket::SequenceRows& rows) {
    State state{};
    const auto* slot = reinterpret_cast<const State*>(caches.states->slot(rows.state_slot));
    pocket::copy_to_host(context, slot, std::span(&state, 1));
    require(state.position == rows.position, "the recurrent state is elsewhere");
    require(!rows.chunked || rows.position % 64 == 0, "a chunk begins inside a chunk");
    return state;
  }

  static void store(pocket::Context& context, pocket::Caches& caches, const pocket::SequenceRows& rows,
                    const State& state) {
    auto* slot = reinterpret_cast<State*>(caches.states->slot(rows.state_slot));
    pocket::copy_from_host(context, std::span(&state, 1), slot);
  }

  pocket::ModelShape shape_;
  bool is_recurrent_ = false;
  std::vector<std::uint64_t> hashes_;
};

// A runtime around a FakeModel.
struct FakeRuntime {
  FakeModel* model = nullptr;
  pocket::Runtime runtime;

  FakeRuntime(const Shape& shape, const pocket::RuntimeOptions& options)
      : runtime(
            [&](pocket::Context&) {
              auto made = std::make_unique<FakeModel>(shape);
              model = made.get();
              return made;
            },
            options) {}
};

inline pocket::RuntimeOptions small_options(std::int32_t num_slots = 4, std::int64_t max_model_len = 512) {
  pocket::RuntimeOptions options;
  options.num_threads = 1;
  options.num_slots = num_slots;
  options.max_model_len = max_model_len;
  return options;
}

// So many blocks of 16 positions, no matter how many the slots would need.
inline std::int64_t bytes_of_blocks(std::int64_t num_blocks) {
  pocket::ThreadPool threads(1);
  const pocket::Context context = pocket::open_device("cpu", threads);
  pocket::KvShape shape = pocket::kv_shape(FakeModel({}).shape().caches);
  shape.block_size = pocket::kv_block_size(context);
  return num_blocks * static_cast<std::int64_t>(pocket::kv_block_bytes(context, shape));
}

}  // namespace fake
