// Real (tiny, random) models in the engine: what is shared, batched, cut or recomputed changes no bit of an answer.
#include <optional>

#include "device_tensor.h"
#include "engine/engine.h"
#include "engine_gate.h"
#include "engine_recorder.h"
#include "memory_models.h"

using namespace pocket;

namespace {

class GatedModel final : public Model {
 public:
  GatedModel(std::unique_ptr<Model> model, bench::Gate& gate) : model_(std::move(model)), gate_(gate) {}
  const ModelShape& shape() const noexcept override { return model_->shape(); }
  void forward(Context& context, const Step& step, Caches& caches, float* logits) override {
    gate_.pass();
    model_->forward(context, step, caches, logits);
  }

 private:
  std::unique_ptr<Model> model_;
  bench::Gate& gate_;
};

struct Bench {
  // `num_positions`: of all blocks of the cache together.
  Bench(const std::string& device, const MemoryModel& memory, std::int32_t num_slots, std::int64_t num_positions,
        const EngineOptions& options) {
    RuntimeOptions sizes;
    sizes.device = device;
    sizes.num_threads = 2;
    sizes.num_slots = num_slots;
    const Runtime::Load load = [&](Context& context) {
      auto model = load_model(context, memory.config, memory.source, {}, nullptr);
      KvShape shape = kv_shape(model->shape().caches);
      shape.block_size = kv_block_size(context);
      const std::int64_t num_blocks = num_positions / shape.block_size;
      sizes.kv_cache_bytes = num_blocks * static_cast<std::int64_t>(kv_block_bytes(context, shape));
      return std::make_unique<GatedModel>(std::move(model), gate);
    };
    runtime.emplace(load, sizes);
    engine.emplace(*runtime, options);
    recorder.emplace(*engine);
  }

  ~Bench() { gate.open(); }

  void send(const Request& request) {
    recorder->expect(request);
    engine->submit(request);
  }

  bench::Gate gate;
  std::optional<Runtime> runtime;
  std::optional<Engine> engine;
  std::optional<record::Recorder> recorder;
};

std::vector<Request> requests() {
  std::vector<Request> all;
  for (int index = 0; index < 10; ++index) {
    Request request;
    request.prompt = tokens_of(index < 6 ? 140 : 20 + 30 * (index - 6), index < 6 ? 1 : index);
    const auto own = tokens_of(5 + 7 * index, 20 + index);
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    request.sampling.max_tokens = 24;
    request.sampling.temperature = index % 2 == 0 ? 0.0f : 1.0f;
    request.sampling.logprobs = true;
    request.sampling.num_top_logprobs = 3;
    request.choices.resize(index == 3 ? 3 : 1);
    for (std::size_t choice = 0; choice < request.choices.size(); ++choice) {
      request.choices[choice] = {static_cast<std::uint64_t>(index) * 10 + choice, choice + 7, {}};
    }
    all.push_back(request);
  }
  return all;
}

void check_same_bits(const std::string& device, const MemoryModel& memory) {
  const auto all = requests();
  Bench alone(device, memory, 1, 256, {.prefill_token_budget = 0, .prefix_cache = false});
  for (const Request& request : all) {
    alone.send(request);
    alone.recorder->wait_all();
  }
  // Plenty of room; and so little that sequences are thrown out, and blocks and snapshots given up.
  for (const std::int64_t num_positions : {3200, 480}) {
    Bench together(device, memory, 5, num_positions, {.prefill_token_budget = 64});
    for (int round = 0; round < 2; ++round) {
      std::vector<Request> sent = all;
      for (Request& request : sent) {
        for (Choice& choice : request.choices) choice.handle += 1000 * static_cast<std::uint64_t>(round);
      }
      bench::send_together(together.gate, sent, [&](const Request& request) { together.send(request); });
      together.recorder->wait_all();
      for (const Request& request : sent) {
        for (const Choice& choice : request.choices) {
          const record::Stream& expected = (*alone.recorder)[choice.handle % 1000];
          const record::Stream& got = (*together.recorder)[choice.handle];
          CHECK(got.tokens == expected.tokens);
          CHECK_EQUAL(got.rows.size(), expected.rows.size());
          for (std::size_t row = 0; row < got.rows.size(); ++row) {
            CHECK_EQUAL(got.rows[row].logprob, expected.rows[row].logprob);
            CHECK(got.rows[row].top == expected.rows[row].top);
          }
        }
      }
    }
    const EngineStats stats = together.engine->stats();
    CHECK_EQUAL(stats.num_free_blocks, stats.num_blocks);
    if (num_positions == 3200) CHECK(stats.prefix_cache_reused_tokens >= 11 * 128);
    if (num_positions == 480) CHECK(stats.num_preemptions > 0);
  }
}

}  // namespace

TEST(llama_answers_do_not_depend_on_company_or_reuse) {
  bench::on_each_device([](const std::string& name) { check_same_bits(name, memory_llama()); });
}
TEST(gemma3_answers_do_not_depend_on_company_or_reuse) {
  bench::on_each_device([](const std::string& name) { check_same_bits(name, memory_gemma3()); });
}
TEST(qwen3_5_answers_do_not_depend_on_company_or_reuse) {
  bench::on_each_device([](const std::string& name) { check_same_bits(name, memory_qwen3_5(false)); });
}
TEST(qwen3_5_moe_answers_do_not_depend_on_company_or_reuse) {
  bench::on_each_device([](const std::string& name) { check_same_bits(name, memory_qwen3_5(true)); });
}
