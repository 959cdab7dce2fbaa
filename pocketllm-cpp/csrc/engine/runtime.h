// A loaded model with its threads and the memory its sequences live in. Owns no policy: sessions and the scheduler do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/tensor_source.h"
#include "core/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/recurrent_states.h"
#include "models/model.h"

namespace pocket {

// Shares of memory are of the device's.
struct RuntimeOptions {
  std::string device = "cpu";  // kernels/devices.h has the names
  int num_threads = 0;  // 0: one per core this process may use
  ModelOptions model;
  KvType kv_type = KvType::kF16;
  std::int64_t max_model_len = 0;     // 0: the checkpoint's
  std::int32_t num_slots = 8;         // sequences that run together
  std::int64_t kv_cache_bytes = 0;    // 0: what num_slots sequences of max_model_len take; a quarter of memory at most
  std::int32_t num_snapshots = 64;    // recurrent states kept for reuse; fewer when they would take an eighth of memory
};

class Runtime {
 public:
  // Makes the model on the runtime's threads. It may read its source for as long as it lives.
  using Load = std::function<std::unique_ptr<Model>(Context& context)>;

  // Loads a checkpoint. Throws Error as load_model does, and as the constructor.
  static std::unique_ptr<Runtime> open(std::unique_ptr<TensorSource> source, const std::string& config,
                                       const RuntimeOptions& options, const Progress& progress);
  // `source`: what the model reads, which is freed after it; null when it reads nothing. Throws Error(kConfiguration) for
  // sizes that do not fit.
  Runtime(const Load& load, const RuntimeOptions& options, std::unique_ptr<TensorSource> source = nullptr);
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Model& model() noexcept { return *model_; }
  Context& context() noexcept { return context_; }
  KvCache& kv() noexcept { return kv_; }
  // nullptr for models without recurrent layers.
  RecurrentStates* states() noexcept { return states_.get(); }
  // Recurrent states can be kept at multiples of it; 1 without them.
  std::int64_t segment_length() const noexcept { return sizes_.state.segment_length; }
  // Never more than the cache can hold.
  std::int64_t max_model_len() const noexcept { return sizes_.max_model_len; }
  std::int32_t num_slots() const noexcept { return sizes_.num_slots; }
  std::int32_t num_snapshots() const noexcept { return sizes_.num_snapshots; }
  Caches caches() noexcept { return {kv_, states_.get()}; }

 private:
  struct Sizes {
    std::int64_t max_model_len = 0;
    std::int32_t num_slots = 0;
    std::int32_t num_snapshots = 0;
    KvShape kv;
    RecurrentSpec state{0, 1};  // 0 bytes for models without recurrent layers
  };

  static Sizes plan(const Context& context, const ModelShape& shape, const RuntimeOptions& options);

  std::unique_ptr<TensorSource> source_;
  ThreadPool threads_;
  Context context_;
  std::unique_ptr<Model> model_;
  Sizes sizes_;
  KvCache kv_;
  std::unique_ptr<RecurrentStates> states_;
};

}  // namespace pocket
