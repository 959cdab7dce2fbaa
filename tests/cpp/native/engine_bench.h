// An engine around a FakeModel, with what tests of it need.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "check.h"
#include "engine/engine.h"
#include "engine_gate.h"
#include "engine_recorder.h"
#include "fake_matcher.h"
#include "fake_model.h"
#include "naive_engine.h"

namespace bench {

using namespace pocket;
using record::Stream;

inline std::vector<std::int32_t> text(std::int64_t num_tokens, std::int32_t kind = 0) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(num_tokens));
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    tokens[index] = static_cast<std::int32_t>(mix_bits(index * 64 + static_cast<std::size_t>(kind)) % 61);
  }
  return tokens;
}

inline Request ask(std::vector<std::int32_t> prompt, std::int64_t max_tokens, std::vector<Choice> choices = {}) {
  static std::uint64_t next_handle = 1;
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.max_tokens = max_tokens;
  request.choices = choices.empty() ? std::vector<Choice>(1) : std::move(choices);
  for (Choice& choice : request.choices) choice.handle = next_handle++;
  return request;
}

struct Setup {
  bool recurrent = false;
  RuntimeOptions runtime = fake::small_options();
  EngineOptions engine = {};
  std::function<std::unique_ptr<Drafter>()> make_drafter = nullptr;
};

struct Bench {
  explicit Bench(const Setup& setup = {})
      : fake({.recurrent = setup.recurrent}, setup.runtime),
        oracle({.recurrent = setup.recurrent}, fake::small_options(1, 512)) {
    fake.model->on_forward = [this](const Step& step) {
      gate.pass();
      const std::lock_guard lock(mutex);
      if (hook) hook(step);
    };
    engine.emplace(fake.runtime, setup.engine, setup.make_drafter ? setup.make_drafter() : nullptr);
    recorder.emplace(*engine);
  }
  ~Bench() { gate.open(); }

  std::uint64_t send(const Request& request) {
    recorder->expect(request);
    engine->submit(request);
    return request.choices[0].handle;
  }
  Stream& run(const Request& request) { return recorder->wait_end(send(request)); }
  naive::Answer expected(const Request& request, std::size_t choice = 0) {
    return naive::answer(oracle.runtime, request, request.choices[choice].seed);
  }
  void check_answer(const Request& request) {
    for (std::size_t choice = 0; choice < request.choices.size(); ++choice) {
      const Stream& stream = recorder->wait_end(request.choices[choice].handle);
      const naive::Answer wanted = expected(request, choice);
      CHECK(stream.tokens == wanted.tokens);
      CHECK_EQUAL(finish_reason_name(stream.finish->reason), finish_reason_name(wanted.reason));
    }
  }
  void on_step(std::function<void(const Step&)> replacement) {
    const std::lock_guard lock(mutex);
    hook = std::move(replacement);
  }
  // Everything has been given back.
  void check_idle() {
    recorder->wait_all();
    const EngineStats stats = engine->stats();
    CHECK_EQUAL(stats.num_running, 0);
    CHECK_EQUAL(stats.num_waiting, 0);
    CHECK_EQUAL(stats.num_free_slots, stats.num_slots);
    CHECK_EQUAL(stats.num_free_blocks, stats.num_blocks);
  }

  Gate gate;
  std::mutex mutex;
  std::function<void(const Step&)> hook;
  fake::FakeRuntime fake, oracle;
  std::optional<Engine> engine;
  std::optional<record::Recorder> recorder;
};

}  // namespace bench
