// Whole models over steps: what a row's logits may depend on, and what a step must be.
#include <algorithm>
#include <string>
#include <vector>

#include "device_tensor.h"
#include "core/error.h"
#include "memory_models.h"

using namespace pocket;

namespace {

constexpr std::size_t kVocab = 48;

std::vector<MemoryModel> all_models() {
  std::vector<MemoryModel> models;
  models.push_back(memory_llama());
  models.push_back(memory_gemma3());
  models.push_back(memory_qwen3_5(false));
  models.push_back(memory_qwen3_5(true));
  return models;
}

std::vector<float> row_of(const std::vector<float>& logits, std::size_t row) {
  return {logits.begin() + static_cast<std::ptrdiff_t>(row * kVocab),
          logits.begin() + static_cast<std::ptrdiff_t>((row + 1) * kVocab)};
}

float spread(const std::vector<float>& values) {
  return *std::max_element(values.begin(), values.end()) - *std::min_element(values.begin(), values.end());
}

template <class Body>
Error error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  throw std::runtime_error("no error was thrown");
}

}  // namespace

TEST(wanted_rows_have_the_bits_of_all_rows) {
  bench::on_each_device([](const std::string& name) {
    for (const MemoryModel& memory : all_models()) {
      const std::vector<std::int32_t> tokens = tokens_of(20, 1);
      const std::vector<float> all = ModelBench(memory, 2, {}, name).run({{0, tokens, all_rows(20)}});
      CHECK(spread(row_of(all, 19)) > 0.1f);
      for (const std::vector<std::int32_t>& wanted :
           std::vector<std::vector<std::int32_t>>{{19}, {0, 1, 2}, {3, 4, 9, 19}, {0}, {7, 9, 11}}) {
        ModelBench bench(memory, 2, {}, name);
        const std::vector<float> some = bench.run({{0, tokens, wanted}});
        for (std::size_t index = 0; index < wanted.size(); ++index) {
          CHECK(row_of(some, index) == row_of(all, static_cast<std::size_t>(wanted[index])));
        }
      }
    }
  });
}

TEST(rows_that_nobody_wants_still_fill_the_caches) {
  bench::on_each_device([](const std::string& name) {
    for (const MemoryModel& memory : all_models()) {
      const std::vector<std::int32_t> tokens = tokens_of(20, 2);
      const std::vector<float> all = ModelBench(memory, 2, {}, name).run({{0, tokens, all_rows(20)}});
      ModelBench bench(memory, 2, {}, name);
      CHECK(bench.run({{0, {tokens.begin(), tokens.begin() + 17}, {}}}).empty());
      for (std::size_t row = 17; row < 20; ++row) {
        CHECK(bench.run({{0, {tokens[row]}, {0}}}) == row_of(all, row));
      }
    }
  });
}

TEST(bits_do_not_depend_on_the_batch) {
  bench::on_each_device([](const std::string& name) {
    for (const Activation activation : {Activation::kFloat32, Activation::kInt8}) {
      for (const MemoryModel& memory : all_models()) {
        const ModelOptions options{.activation = activation};
        const std::vector<std::int32_t> a = tokens_of(19, 3), b = tokens_of(23, 4), c = tokens_of(11, 5);
        const std::vector<float> alone_a = ModelBench(memory, 1, options, name).run({{0, a, all_rows(19)}});
        const std::vector<float> alone_b = ModelBench(memory, 2, options, name).run({{2, b, all_rows(23)}});
        ModelBench bench(memory, 2, options, name);
        const std::vector<float> first =
            bench.run({{1, {a.begin(), a.begin() + 9}, {8}}, {3, {b.begin(), b.begin() + 20}, {5, 19}}});
        CHECK(row_of(first, 0) == row_of(alone_a, 8));
        CHECK(row_of(first, 1) == row_of(alone_b, 5));
        CHECK(row_of(first, 2) == row_of(alone_b, 19));
        const std::vector<float> second =
            bench.run({{3, {b.begin() + 20, b.end()}, {0, 2}}, {0, c, {}}, {1, {a.begin() + 9, a.end()}, {9}}});
        CHECK(row_of(second, 0) == row_of(alone_b, 20));
        CHECK(row_of(second, 1) == row_of(alone_b, 22));
        CHECK(row_of(second, 2) == row_of(alone_a, 18));
      }
    }
  });
}

TEST(every_device_gives_the_logits_of_the_reference) {
  bench::on_each_device([](const std::string& name) {
    const ModelOptions options{.activation = Activation::kFloat32};
    for (const MemoryModel& memory : all_models()) {
      const std::vector<std::int32_t> tokens = tokens_of(20, 7);
      ModelBench judged(memory, 2, options, name), judge(memory, 2, options, "reference");
      // A prompt, and then one token of it at a time.
      for (int from = 0, count = 17; from < 20; from += count, count = 1) {
        const std::vector<std::int32_t> part(tokens.begin() + from, tokens.begin() + from + count);
        const std::vector<float> logits = judged.run({{0, part, all_rows(count)}});
        const std::vector<float> expected = judge.run({{0, part, all_rows(count)}});
        for (std::size_t i = 0; i < logits.size(); ++i) CHECK_CLOSE(logits[i], expected[i], 1e-3);
      }
    }
  });
}

TEST(a_windowed_layer_forgets_earlier_positions) {
  bench::on_each_device([](const std::string& name) {
    const MemoryModel memory = memory_gemma3();
    const ModelOptions options{.num_layers = 2};  // both within windows of 4: 3 + 3 earlier positions reach a row
    std::vector<std::int32_t> tokens = tokens_of(20, 6);
    const std::vector<float> before = ModelBench(memory, 1, options, name).run({{0, tokens, {19}}});
    tokens[12] = (tokens[12] + 1) % 48;
    CHECK((ModelBench(memory, 1, options, name).run({{0, tokens, {19}}}) == before));
    tokens[13] = (tokens[13] + 1) % 48;
    CHECK((ModelBench(memory, 1, options, name).run({{0, tokens, {19}}}) != before));
  });
}

TEST(every_layer_declares_what_it_keeps) {
  const MemoryModel gemma = memory_gemma3(), hybrid = memory_qwen3_5(false);
  std::vector<std::int64_t> windows;
  ModelBench windowed(gemma);
  for (const CacheSpec& spec : windowed.model().shape().caches) {
    windows.push_back(std::get<KeyValueSpec>(spec).window);
  }
  CHECK(std::find(windows.begin(), windows.end(), 0) != windows.end());
  CHECK(std::find(windows.begin(), windows.end(), 4) != windows.end());
  std::size_t num_recurrent = 0;
  ModelBench bench(hybrid);
  for (const CacheSpec& spec : bench.model().shape().caches) {
    const auto* recurrent = std::get_if<RecurrentSpec>(&spec);
    if (recurrent == nullptr) continue;
    ++num_recurrent;
    CHECK(recurrent->state_bytes > 0 && recurrent->segment_length == 64);
  }
  CHECK_EQUAL(num_recurrent, 2u);
}

TEST(attention_layers_of_different_sizes_are_refused) {
  CHECK_EQUAL(kv_shape(std::vector<CacheSpec>{KeyValueSpec{2, 8}, RecurrentSpec{64, 64}, KeyValueSpec{2, 8, 4}}).num_layers,
              2);
  try {
    kv_shape(std::vector<CacheSpec>{KeyValueSpec{2, 8}, KeyValueSpec{2, 16}});
    CHECK(false);
  } catch (const Error& error) {
    CHECK_EQUAL(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::kUnsupportedFeature));
  }
}

TEST(shapes_that_the_engine_plans_with) {
  const MemoryModel llama_memory = memory_llama(), experts_memory = memory_qwen3_5(true);
  ModelBench llama(llama_memory);
  const ModelShape& shape = llama.model().shape();
  CHECK_EQUAL(shape.model_type, std::string("llama"));
  CHECK_EQUAL(shape.vocab_size, 48);
  CHECK_EQUAL(shape.max_positions, 256);
  CHECK_EQUAL(shape.caches.size(), 3u);
  CHECK_EQUAL(kv_shape(shape.caches).num_layers, 3);
  CHECK_EQUAL(kv_shape(shape.caches).num_kv_heads, 2);
  CHECK_EQUAL(kv_shape(shape.caches).head_dim, 8);
  CHECK(!recurrent_state(shape.caches));
  CHECK_EQUAL(shape.bytes_per_token, shape.weights_bytes);

  ModelBench experts(experts_memory);
  const ModelShape& mixture = experts.model().shape();
  CHECK_EQUAL(mixture.caches.size(), 3u);
  CHECK_EQUAL(kv_shape(mixture.caches).num_layers, 1);
  const auto& state = std::get<RecurrentSpec>(mixture.caches[0]);
  CHECK_EQUAL(recurrent_state(mixture.caches)->state_bytes, 2 * state.state_bytes);
  CHECK_EQUAL(recurrent_state(mixture.caches)->segment_length, 64);
  // Of six experts two are read, in three layers.
  const std::size_t expert_bytes = 3 * 6 * 3 * 16 * 32 * sizeof(float);
  CHECK(mixture.weights_bytes - mixture.bytes_per_token >= expert_bytes * 2 / 3);

  ModelBench fewer(llama_memory, 1, {.num_layers = 2});
  CHECK_EQUAL(kv_shape(fewer.model().shape().caches).num_layers, 2);
  CHECK_EQUAL(fewer.run({{0, {1, 2}, {1}}}).size(), kVocab);
  CHECK(error_of([&] { ModelBench(llama_memory, 1, {.num_layers = 4}); }).param() == "num_layers");
}

TEST(progress_ends_at_one) {
  const MemoryModel memory = memory_llama();
  ThreadPool threads(1);
  Context context = open_device("cpu", threads);
  std::vector<double> seen;
  load_model(context, memory.config, memory.source, {}, [&](double fraction) { seen.push_back(fraction); });
  CHECK_EQUAL(seen.size(), 4u);
  CHECK(std::is_sorted(seen.begin(), seen.end()));
  CHECK_EQUAL(seen.back(), 1.0);
}

TEST(malformed_steps_are_refused) {
  const MemoryModel memory = memory_llama();
  ModelBench bench(memory);
  const Error outside = error_of([&] { bench.run({{0, {1, 48}, {0}}}); });
  CHECK(outside.kind() == ErrorKind::kConfiguration);
  CHECK_THROWS(Error, bench.run({{0, {-1}, {0}}}));
  const std::vector<std::int32_t> tokens{1, 2, 3}, blocks{0}, wanted{2, 1}, none;
  const auto refused = [&](SequenceRows rows, std::span<const std::int32_t> logit_rows) {
    const Error error = error_of([&] {
      bench.run_step({.tokens = tokens, .sequences = std::span(&rows, 1), .logit_rows = logit_rows});
    });
    return error.kind() == ErrorKind::kEngine;
  };
  CHECK(refused({.first_row = 0, .num_rows = 2, .position = 0, .blocks = blocks}, none));
  CHECK(refused({.first_row = 1, .num_rows = 3, .position = 0, .blocks = blocks}, none));
  CHECK(refused({.first_row = 0, .num_rows = 3, .position = 14, .blocks = blocks}, none));
  CHECK(refused({.first_row = 0, .num_rows = 3, .position = 0, .blocks = blocks}, wanted));
  CHECK(bench.run({}).empty());
}
