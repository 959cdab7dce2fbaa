#include "bindings/runtime.h"

#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <optional>

#include "bindings/init.h"
#include "core/checkpoint_source.h"
#include "core/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pocket {

std::int64_t BoundRuntime::lease(bool for_engine) {
  const std::unique_lock<std::mutex> held(mutex_);
  if (engine_open_) {
    throw Error(ErrorKind::kConfiguration, "An engine or a scheduler runs on this runtime: stop it first.");
  }
  engine_open_ = for_engine;
  return ++lease_;
}

std::unique_lock<std::mutex> BoundRuntime::enter(std::int64_t lease) {
  std::unique_lock<std::mutex> held(mutex_);
  if (lease != lease_) {
    throw Error(ErrorKind::kConfiguration,
                "Another session, engine or scheduler has used this runtime since: make a new session.");
  }
  return held;
}

void BoundRuntime::end_engine() noexcept {
  const std::unique_lock<std::mutex> held(mutex_);
  engine_open_ = false;
}

namespace {

Activation activation_named(const std::string& name) {
  if (name == "int8") return Activation::kInt8;
  if (name == "float32") return Activation::kFloat32;
  throw Error(ErrorKind::kConfiguration, "activation = \"" + name + "\" is not known: give int8 or float32.",
              "activation");
}

KvType kv_type_named(const std::string& name) {
  if (name == "F16") return KvType::kF16;
  if (name == "Q8_0") return KvType::kQ8_0;
  if (name == "F32") return KvType::kF32;
  throw Error(ErrorKind::kUnsupportedFeature,
              "kv_type = \"" + name + "\" is not in this build: give F16, Q8_0 or F32.", "kv_cache_dtype");
}

// A report waits for the interpreter's lock, for milliseconds where another thread computes.
constexpr auto kReportEvery = std::chrono::milliseconds(100);

void make_runtime(BoundRuntime* self, const std::string& path, const std::string& config, const std::string& device,
                  const std::string& activation, const std::string& kv_type, int num_threads,
                  std::int64_t max_model_len, std::int32_t num_slots, std::int64_t kv_cache_bytes,
                  std::optional<std::int32_t> num_snapshots, std::int64_t num_layers,
                  const std::optional<nb::callable>& progress) {
  RuntimeOptions options;
  options.device = device;
  options.num_threads = num_threads;
  options.model.activation = activation_named(activation);
  options.model.max_positions = max_model_len;
  options.model.num_layers = num_layers;
  options.kv_type = kv_type_named(kv_type);
  options.max_model_len = max_model_len;
  options.num_slots = num_slots;
  options.kv_cache_bytes = kv_cache_bytes;
  if (num_snapshots) options.num_snapshots = *num_snapshots;
  Progress report = [](double) {};
  if (progress) {
    report = [&progress, last = std::chrono::steady_clock::time_point{}](double fraction) mutable {
      const auto now = std::chrono::steady_clock::now();
      if (fraction < 1.0 && now - last < kReportEvery) return;
      last = now;
      nb::gil_scoped_acquire acquire;
      (*progress)(fraction);
    };
  }
  nb::gil_scoped_release release;
  new (self) BoundRuntime(Runtime::open(open_tensor_source(path), config, options, report));
}

}  // namespace

void init_runtime(nb::module_& module) {
  nb::class_<BoundRuntime>(module, "Runtime",
                           "A loaded model with its threads and caches. A session or an engine runs on it; the one made last "
                           "has it. Its properties are constant and may be read from any thread.")
      .def("__init__", &make_runtime, "path"_a, "config"_a, nb::kw_only(), "device"_a = "cpu",
           "activation"_a = "int8", "kv_type"_a = "F16",
           "num_threads"_a = 0, "max_model_len"_a = 0, "num_slots"_a = 1, "kv_cache_bytes"_a = 0,
           "num_snapshots"_a = nb::none(), "num_layers"_a = 0, "progress"_a = nb::none(),
           nb::sig("def __init__(self, path: str, config: str, *, device: str = \"cpu\", "
                   "activation: str = \"int8\", kv_type: str = \"F16\", "
                   "num_threads: int = 0, max_model_len: int = 0, num_slots: int = 1, kv_cache_bytes: int = 0, "
                   "num_snapshots: int | None = None, num_layers: int = 0, "
                   "progress: collections.abc.Callable[[float], None] | None = None) -> None"),
           "Loads the weights, in seconds, without the interpreter's lock. path is a file or a folder of shards, config the "
           "text of its config.json. 0 leaves a number to the engine: num_threads one per core, max_model_len the "
           "checkpoint's, kv_cache_bytes what num_slots sequences take but at most a quarter of the device's memory, "
           "num_layers all. num_snapshots: recurrent states kept for reuse. progress is called with the fraction done, on the "
           "calling thread, a few times a second. Raises CheckpointError, ConfigurationError or UnsupportedFeatureError.")
      .def_prop_ro("device", [](BoundRuntime& self) { return std::string(self.runtime().context().device.name()); },
                   "The device that the model runs on, as devices() names it.")
      .def_prop_ro("max_model_len", [](BoundRuntime& self) { return self.runtime().max_model_len(); },
                   "Positions a sequence may hold; never more than the cache can.")
      .def_prop_ro("num_slots", [](BoundRuntime& self) { return self.runtime().num_slots(); },
                   "Sequences that an engine may run together.")
      .def_prop_ro("num_threads", [](BoundRuntime& self) { return self.runtime().context().threads.num_threads(); },
                   "Threads of one step.")
      .def_prop_ro("vocab_size", [](BoundRuntime& self) { return self.runtime().model().shape().vocab_size; },
                   "Rows of the head; ids past the tokenizer's vocabulary are padding.")
      .def_prop_ro("is_recurrent", [](BoundRuntime& self) { return self.runtime().states() != nullptr; },
                   "Some layers keep a state instead of keys and values.")
      .def_prop_ro("weights_bytes", [](BoundRuntime& self) { return self.runtime().model().shape().weights_bytes; },
                   "Memory of the weights, as packed.")
      .def_prop_ro("kv_bytes", [](BoundRuntime& self) { return self.runtime().kv().num_bytes(); },
                   "Memory of the key/value cache.")
      .def_prop_ro("num_kv_blocks", [](BoundRuntime& self) { return self.runtime().kv().shape().num_blocks; },
                   "Blocks of the key/value cache.")
      .def_prop_ro("kv_block_size", [](BoundRuntime& self) { return self.runtime().kv().shape().block_size; },
                   "Positions of one block.")
      .def_prop_ro("state_bytes", [](BoundRuntime& self) -> std::size_t {
        const RecurrentStates* states = self.runtime().states();
        if (states == nullptr) return 0;
        return states->slot_bytes() * static_cast<std::size_t>(self.runtime().num_slots());
      }, "Memory of the recurrent states of num_slots sequences; 0 for models without.");
}

}  // namespace pocket
