#include "engine/engine.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>
#include <utility>

#include "bindings/init.h"
#include "bindings/runtime.h"
#include "core/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pocket {
namespace {

// handle, seed, and the addresses of a MatcherFunctions and its object, both 0 without a constraint.
using ChoiceFields = std::tuple<std::uint64_t, std::uint64_t, std::uintptr_t, std::uintptr_t>;

nb::list logprob_rows(const std::vector<Logprob>& rows) {
  nb::list out;
  for (const Logprob& entry : rows) out.append(nb::make_tuple(entry.row, entry.logprob, nb::cast(entry.top)));
  return out;
}

// Core's StepBatch as a tuple: handles, tokens, flags, logprobs, prompts, finished, fatal.
nb::tuple batch_fields(const StepBatch& batch) {
  nb::list prompts;
  for (const PromptReport& report : batch.prompts) {
    prompts.append(nb::make_tuple(report.handle, report.num_cached_tokens, logprob_rows(report.logprobs)));
  }
  nb::list finished;
  for (const Finish& finish : batch.finished) {
    nb::object error = finish.error.empty() ? nb::none() : nb::object(nb::str(finish.error.c_str()));
    finished.append(nb::make_tuple(finish.handle, finish_reason_name(finish.reason), error));
  }
  nb::object fatal = batch.fatal.empty() ? nb::none() : nb::object(nb::str(batch.fatal.c_str()));
  return nb::make_tuple(nb::cast(batch.handles), nb::cast(batch.tokens), nb::cast(batch.flags),
                        logprob_rows(batch.logprobs), prompts, finished, fatal);
}

class BoundEngine {
 public:
  BoundEngine(BoundRuntime& runtime, std::int32_t max_batch_size, std::int64_t prefill_token_budget,
              std::int64_t prefill_tokens_beside_decodes, bool prefix_cache,
              std::int64_t vocab_size)
      : runtime_(runtime) {
    runtime_.lease(true);
    EngineOptions options;
    options.max_batch_size = max_batch_size;
    options.prefill_token_budget = prefill_token_budget;
    options.prefill_tokens_beside_decodes = prefill_tokens_beside_decodes;
    options.prefix_cache = prefix_cache;
    options.vocab_size = vocab_size;
    try {
      engine_ = std::make_shared<Engine>(runtime_.runtime(), options);
    } catch (...) {
      runtime_.end_engine();
      throw;
    }
  }

  ~BoundEngine() { give_back(); }

  BoundEngine(const BoundEngine&) = delete;
  BoundEngine& operator=(const BoundEngine&) = delete;

  bool is_open() const noexcept { return engine_ != nullptr; }

  // Shared, so that it outlives a call during which another thread gives it back.
  std::shared_ptr<Engine> engine() const {
    if (engine_ == nullptr) throw Error(ErrorKind::kEngine, "The engine is closed: open a new one.");
    return engine_;
  }

  // Ends the engine and lets others have the runtime. Needs the interpreter's lock, and gives it away meanwhile: the
  // engine's thread may be inside a matcher that waits for it.
  void give_back() {
    std::shared_ptr<Engine> engine = std::exchange(engine_, nullptr);
    if (engine == nullptr) return;
    nb::gil_scoped_release release;
    engine.reset();
    runtime_.end_engine();
  }

  // Takes over the matchers, also when it throws.
  void submit(std::vector<std::int32_t> prompt, const std::vector<ChoiceFields>& choices,
              const SamplingParams& sampling, std::vector<std::int32_t> stop_ids, std::int64_t priority,
              std::string cache_salt) {
    Request request;
    request.prompt = std::move(prompt);
    for (const auto& [handle, seed, functions, object] : choices) {
      Choice choice{handle, seed, {}};
      choice.matcher.functions = reinterpret_cast<const MatcherFunctions*>(functions);
      choice.matcher.object = reinterpret_cast<void*>(object);
      request.choices.push_back(choice);
    }
    request.sampling = sampling;
    request.stop_ids = std::move(stop_ids);
    request.priority = priority;
    request.cache_salt = std::move(cache_salt);
    if (engine_ == nullptr) {
      for (const Choice& choice : request.choices) {
        if (choice.matcher.functions != nullptr) choice.matcher.functions->release(choice.matcher.object);
      }
    }
    engine()->submit(std::move(request));
  }

  nb::list drain() {
    nb::list out;
    for (const StepBatch& batch : engine()->drain()) out.append(batch_fields(batch));
    return out;
  }

 private:
  BoundRuntime& runtime_;
  std::shared_ptr<Engine> engine_;
};

}  // namespace

void init_engine(nb::module_& module) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<EngineStats>(module, "EngineStats", "The counters of an engine at one moment. Totals never decrease.")
      .def_ro("num_running", &EngineStats::num_running, "Sequences that have a slot.")
      .def_ro("num_waiting", &EngineStats::num_waiting, "Sequences in the queue.")
      .def_ro("num_steps", &EngineStats::num_steps, "Steps in all.")
      .def_ro("num_slots", &EngineStats::num_slots, "Sequences that may run together.")
      .def_ro("num_free_slots", &EngineStats::num_free_slots, "Slots that no sequence has.")
      .def_ro("num_blocks", &EngineStats::num_blocks, "Blocks of the KV cache.")
      .def_ro("num_free_blocks", &EngineStats::num_free_blocks,
              "Blocks that no sequence holds; those kept for their prefix are among them.")
      .def_ro("num_cached_blocks", &EngineStats::num_cached_blocks, "Blocks whose prefix can be reused.")
      .def_ro("num_preemptions", &EngineStats::num_preemptions, "Times a sequence lost its blocks and had to wait, in all.")
      .def_ro("num_prompt_tokens", &EngineStats::num_prompt_tokens, "Prompt tokens computed in all.")
      .def_ro("num_generated_tokens", &EngineStats::num_generated_tokens, "Tokens drawn in all.")
      .def_ro("num_completed", &EngineStats::num_completed, "Sequences that ended by a stop id or a limit, in all.")
      .def_ro("num_cancelled", &EngineStats::num_cancelled, "Sequences that ended as cancelled, in all.")
      .def_ro("prefix_cache_hits", &EngineStats::prefix_cache_hits, "Admissions that reused something, in all.")
      .def_ro("prefix_cache_misses", &EngineStats::prefix_cache_misses, "Admissions that found nothing to reuse, in all.")
      .def_ro("prefix_cache_reused_tokens", &EngineStats::prefix_cache_reused_tokens,
              "Prompt tokens that were not computed again, in all.");

  nb::class_<BoundEngine>(module, "Engine", nb::is_weak_referenceable(),
                          "Continuous batching on a thread of its own, which has the runtime until give_back. Methods may be "
                          "called from any thread, drain from one at a time. After give_back all but close and give_back "
                          "raise EngineError.")
      .def(nb::init<BoundRuntime&, std::int32_t, std::int64_t, std::int64_t, bool, std::int64_t>(), "runtime"_a,
           nb::kw_only(), "max_batch_size"_a, "prefill_token_budget"_a, "prefill_tokens_beside_decodes"_a = 0,
           "prefix_cache"_a, "vocab_size"_a, nb::keep_alive<1, 2>(), Release(),
           "max_batch_size is cut to the runtime's slots. prefill_token_budget: prompt tokens one step may compute, 0 for "
           "whole prompts; prefill_tokens_beside_decodes: the same for steps in which other sequences decode, 0 for the "
           "budget. vocab_size: ids that may be generated, 0 for the model's. Raises ConfigurationError while another "
           "engine has the runtime.")
      // Those without a guard hold a lock for an instant; giving the interpreter's lock away would cost more.
      .def("submit", &BoundEngine::submit, "prompt"_a, "choices"_a, "sampling"_a, "stop_ids"_a, "priority"_a,
           "cache_salt"_a,
           "Queues a request: one sequence for each choice, which is (handle, seed, and the addresses of a matcher's "
           "functions and object, or 0 and 0). Takes over the matchers, also when it raises: ConfigurationError for an id "
           "outside the vocabulary or a prompt that leaves no room for a token, EngineError when the engine is closed or "
           "broken.")
      .def("cancel", [](BoundEngine& self, std::uint64_t handle) { self.engine()->cancel(handle); }, "handle"_a,
           "Ends a sequence at the next step boundary. A handle that is unknown or has ended is passed over.")
      .def(
          "close",
          [](BoundEngine& self, double deadline_s) {
            if (!self.is_open()) return;
            const std::shared_ptr<Engine> engine = self.engine();
            nb::gil_scoped_release release;
            engine->close(deadline_s);
          },
          "deadline_s"_a,
          "Ends all sequences as cancelled, waits for the step under way but no longer than deadline_s seconds, and takes "
          "no request afterwards. Closing again, or after give_back, does nothing.")
      .def("give_back", &BoundEngine::give_back,
           "Closes the engine, waits for its thread, drops what was not drained, and lets others have the runtime. "
           "Idempotent.")
      .def("stats", [](BoundEngine& self) { return self.engine()->stats(); }, "The counters now.")
      .def("set_prefill_token_budget",
           [](BoundEngine& self, std::int64_t num_tokens) { self.engine()->set_prefill_token_budget(num_tokens); },
           "num_tokens"_a, "Prompt tokens that steps may compute from now on, also beside decodes; 0 for whole prompts.")
      .def("fileno", [](BoundEngine& self) { return self.engine()->fileno(); },
           "A descriptor that is readable while batches wait; the engine's, so nobody else closes it.")
      .def("drain", &BoundEngine::drain, nb::sig("def drain(self) -> list[tuple[typing.Any, ...]]"),
           "All waiting batches, without blocking: (handles, tokens, flags, logprobs, prompts, finished, fatal) each, the "
           "columns of core's StepBatch.")
      .def_prop_ro("max_batch_size", [](BoundEngine& self) { return self.engine()->max_batch_size(); },
                   "Sequences that run together, after clamping.")
      .def_prop_ro("prefill_token_budget", [](BoundEngine& self) { return self.engine()->prefill_token_budget(); },
                   "Prompt tokens one step may compute; 0: whole prompts.")
      .def_prop_ro("prefill_tokens_beside_decodes",
                   [](BoundEngine& self) { return self.engine()->prefill_tokens_beside_decodes(); },
                   "Prompt tokens of a step in which others decode; 0: the budget.");
}

}  // namespace pocket
