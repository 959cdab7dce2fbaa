#include "engine/runtime.h"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "core/error.h"
#include "kernels/devices.h"
#include "models/config.h"

namespace pocket {
namespace {

int thread_count(int asked_for) {
  if (asked_for < 0) {
    throw Error(ErrorKind::kConfiguration,
                "num_threads = " + std::to_string(asked_for) + ": give 1 or more, or 0 for one per core.",
                "backend_options.num_threads");
  }
  // The library's count is of the cores that the process may use.
  return asked_for > 0 ? asked_for : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

void check_not_negative(std::int64_t value, const char* name, const char* param) {
  if (value >= 0) return;
  throw Error(ErrorKind::kConfiguration,
              std::string{name} + " = " + std::to_string(value) + ": give 0 for the default, or more.", param);
}

void check_context(std::int64_t asked_for, std::int64_t max_positions) {
  if (asked_for <= max_positions) return;
  throw Error(ErrorKind::kConfiguration,
              "max_model_len = " + std::to_string(asked_for) + " is above the checkpoint's max_position_embeddings = " +
                  std::to_string(max_positions) + ": lower it.",
              "max_model_len");
}

}  // namespace

Runtime::Sizes Runtime::plan(const Context& context, const ModelShape& shape, const RuntimeOptions& options) {
  check_not_negative(options.max_model_len, "max_model_len", "max_model_len");
  check_not_negative(options.kv_cache_bytes, "kv_cache_bytes", "backend_options.kv_cache_bytes");
  if (options.num_slots < 1) {
    throw Error(ErrorKind::kConfiguration,
                "max_batch_size = " + std::to_string(options.num_slots) + ": at least one sequence must have room.",
                "max_batch_size");
  }
  check_context(options.max_model_len, shape.max_positions);
  Sizes sizes;
  sizes.num_slots = options.num_slots;
  sizes.max_model_len = options.max_model_len > 0 ? options.max_model_len : shape.max_positions;
  sizes.kv = kv_shape(shape.caches);
  sizes.kv.type = options.kv_type;
  sizes.kv.block_size = kv_block_size(context);
  const std::int64_t block_size = sizes.kv.block_size;
  const auto block_bytes = static_cast<std::int64_t>(std::max<std::size_t>(1, kv_block_bytes(context, sizes.kv)));
  const std::int64_t per_sequence = (sizes.max_model_len + block_size - 1) / block_size;
  const std::int64_t memory_bytes = context.device.memory_bytes();
  const std::int64_t budget = options.kv_cache_bytes > 0 ? options.kv_cache_bytes : memory_bytes / 4;
  std::int64_t num_blocks = std::min(budget / block_bytes, per_sequence * options.num_slots);
  num_blocks = std::min<std::int64_t>(num_blocks, std::numeric_limits<std::int32_t>::max());
  if (num_blocks < 1) {
    throw Error(ErrorKind::kConfiguration,
                "kv_cache_bytes leaves room for no block: one of " + std::to_string(block_size) +
                    " positions takes " + std::to_string(block_bytes) + " bytes. Raise kv_cache_bytes.",
                "backend_options.kv_cache_bytes");
  }
  if (num_blocks < per_sequence && options.max_model_len > 0) {
    throw Error(ErrorKind::kConfiguration,
                "max_model_len = " + std::to_string(options.max_model_len) + " takes " +
                    std::to_string(per_sequence * block_bytes) + " bytes of cache, and there are " +
                    std::to_string(num_blocks * block_bytes) + ": lower max_model_len to " +
                    std::to_string(num_blocks * block_size) + ", or raise kv_cache_bytes.",
                "max_model_len");
  }
  sizes.max_model_len = std::min(sizes.max_model_len, num_blocks * block_size);
  sizes.kv.num_blocks = static_cast<std::int32_t>(num_blocks);
  sizes.num_snapshots = std::max(0, options.num_snapshots);
  if (const auto state = recurrent_state(shape.caches)) {
    sizes.state = *state;
    const std::int64_t budget_bytes = memory_bytes / 8;
    const std::int64_t most = std::max<std::int64_t>(1, budget_bytes / static_cast<std::int64_t>(state->state_bytes));
    sizes.num_snapshots = static_cast<std::int32_t>(std::min<std::int64_t>(sizes.num_snapshots, most));
  }
  return sizes;
}

Runtime::Runtime(const Load& load, const RuntimeOptions& options, std::unique_ptr<TensorSource> source)
    : source_(std::move(source)),
      threads_(thread_count(options.num_threads)),
      context_(open_device(options.device, threads_)),
      model_(load(context_)),
      sizes_(plan(context_, model_->shape(), options)),
      kv_(context_, sizes_.kv) {
  if (sizes_.state.state_bytes > 0) {
    states_ = std::make_unique<RecurrentStates>(context_, sizes_.state.state_bytes, sizes_.num_slots);
  }
}

std::unique_ptr<Runtime> Runtime::open(std::unique_ptr<TensorSource> source, const std::string& config,
                                       const RuntimeOptions& options, const Progress& progress) {
  TensorSource& tensors = *source;
  const auto load = [&](Context& context) {
    ModelOptions model = options.model;
    // The loaded model's own limit is what it was told to prepare for.
    check_context(options.max_model_len, read_model_config(config).max_positions);
    if (model.max_positions == 0) model.max_positions = options.max_model_len;
    return load_model(context, config, tensors, model, progress);
  };
  return std::make_unique<Runtime>(load, options, std::move(source));
}

}  // namespace pocket
