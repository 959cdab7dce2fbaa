#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "check.h"
#include "engine/logprobs.h"
#include "engine/random_numbers.h"
#include "fake_matcher.h"
#include "kernels/devices.h"

using namespace pocket;

namespace {

std::vector<float> row_of(std::uint64_t seed, std::size_t size) {
  std::vector<float> row(size);
  for (std::size_t id = 0; id < size; ++id) row[id] = static_cast<float>(uniform(seed, id) * 16.0 - 8.0);
  return row;
}

struct Bench {
  explicit Bench(std::int64_t vocab = 100)
      : threads(2), context(open_device("cpu", threads)), sampler(vocab), vocab_size(vocab) {}

  Sequence sequence(const SamplingParams& params, std::vector<std::int32_t> prompt = {1},
                    std::vector<std::int32_t> stop_ids = {}, FakeMatcher* matcher = nullptr) {
    Sequence made;
    made.group = std::make_shared<PromptGroup>();
    made.group->sampling = params;
    made.group->stop_ids = std::move(stop_ids);
    made.num_prompt_tokens = static_cast<std::int64_t>(prompt.size());
    made.tokens = std::move(prompt);
    if (matcher != nullptr) made.sampling.matcher = OwnedMatcher(matcher->as_matcher());
    Sampler::start(made);
    return made;
  }
  std::int32_t sample(Sequence& sequence, const std::vector<float>& logits) {
    const SampleRow row{&sequence, 0};
    std::vector<std::int32_t> tokens;
    sampler.sample(context, rows_of(logits), {&row, 1}, tokens);
    sequence.tokens.push_back(tokens[0]);
    return tokens[0];
  }

  LogitRows rows_of(const std::vector<float>& logits) const { return {logits.data(), std::ssize(logits), vocab_size}; }

  ThreadPool threads;
  Context context;
  Sampler sampler;
  std::int64_t vocab_size;
};

}  // namespace

TEST(random_numbers_are_the_agreed_ones) {
  // From the Python definition that both backends share.
  CHECK_EQUAL(uniform(0, 0), 0x0.0p+0);
  CHECK_EQUAL(uniform(7, 3), 0x1.765ec1b777e38p-3);
  CHECK_EQUAL(uniform(0xFFFFFFFFFFFFFFFFu, 1000), 0x1.4b41cf9dee51cp-2);
}

TEST(penalties_bias_and_minimum_change_the_row_and_not_the_logits) {
  Bench bench(8);
  const std::vector<float> raw{0.0f, 4.0f, 3.9f, -1.0f, 3.0f, 0.0f, 0.0f, 3.5f};
  const auto before = raw;
  SamplingParams repetition;
  repetition.repetition_penalty = 2.0f;
  auto sequence = bench.sequence(repetition, {1, 3});
  CHECK_EQUAL(bench.sample(sequence, raw), 2);  // 1 is in the prompt: 4.0 / 2
  CHECK_EQUAL(bench.sample(sequence, raw), 7);
  SamplingParams frequency;
  frequency.frequency_penalty = 0.3f;
  sequence = bench.sequence(frequency, {1, 3});
  const std::vector<std::int32_t> expected{1, 2, 1, 2, 7, 1, 2};
  for (const std::int32_t token : expected) CHECK_EQUAL(bench.sample(sequence, raw), token);
  SamplingParams presence;
  presence.presence_penalty = 1.0f;
  sequence = bench.sequence(presence);
  for (const std::int32_t token : {1, 2, 7, 1, 1}) CHECK_EQUAL(bench.sample(sequence, raw), token);
  SamplingParams bias;
  bias.logit_bias = {{3, 100.0f}};
  sequence = bench.sequence(bias);
  CHECK_EQUAL(bench.sample(sequence, raw), 3);
  SamplingParams minimum;
  minimum.min_tokens = 2;
  sequence = bench.sequence(minimum, {1}, {1, 2, 900});
  for (const std::int32_t token : {7, 7, 1}) CHECK_EQUAL(bench.sample(sequence, raw), token);
  CHECK(raw == before);
}

TEST(a_matcher_restricts_and_follows_the_tokens) {
  Bench bench(70);
  const auto row = row_of(3, 70);
  SamplingParams params;
  params.min_tokens = 5;
  FakeMatcher matcher;
  matcher.allowed = {{69}, {4, 5}, {3}, {8}};
  {
    auto sequence = bench.sequence(params, {1}, {3, 8}, &matcher);
    CHECK_EQUAL(bench.sample(sequence, row), 69);
    CHECK_EQUAL(bench.sample(sequence, row), row[4] >= row[5] ? 4 : 5);
    CHECK(sequence.sampling.error.empty());
    matcher.position = 3;  // complete: the minimum does not hold it up
    CHECK_EQUAL(bench.sample(sequence, row), 8);
    CHECK((matcher.accepted == std::vector<std::int32_t>{69, row[4] >= row[5] ? 4 : 5, 8}));
    CHECK_EQUAL(matcher.num_released, 0);
    bench.sample(sequence, row);
    CHECK_EQUAL(sequence.sampling.error, "nothing fits");
  }
  CHECK_EQUAL(matcher.num_released, 1);
}

TEST(a_stuck_constraint_concerns_its_row_alone) {
  Bench bench(40);
  const auto row = row_of(4, 40);
  FakeMatcher empty, refusing;
  empty.allowed = {{}};
  refusing.allowed = {{1}, {2}};
  refusing.refuses = true;
  auto first = bench.sequence({}, {1}, {}, &empty);
  auto second = bench.sequence({}, {1}, {}, &refusing);
  auto third = bench.sequence({});
  const std::vector<SampleRow> rows{{&first, 0}, {&second, 0}, {&third, 0}};
  std::vector<std::int32_t> tokens;
  bench.sampler.sample(bench.context, bench.rows_of(row), rows, tokens);
  CHECK_EQUAL(first.sampling.error, "The constraint allows none of the tokens that this model can generate.");
  CHECK_EQUAL(second.sampling.error, "Token 1 was sampled, which the constraint does not allow.");
  CHECK(third.sampling.error.empty());
  CHECK_EQUAL(tokens[2], std::max_element(row.begin(), row.end()) - row.begin());
}

TEST(log_probabilities_are_of_the_raw_row) {
  Bench bench(50);
  const auto row = row_of(9, 50);
  double total = 0.0;
  for (const float logit : row) total += std::exp(static_cast<double>(logit));
  std::vector<Logprob> entries;
  const WantedLogprob wanted{{0, 17, 5}, 3};
  append_logprobs(bench.context, bench.rows_of(row), {&wanted, 1}, entries);
  CHECK_EQUAL(entries.size(), 1u);
  CHECK_EQUAL(entries[0].row, 3);
  CHECK_CLOSE(entries[0].logprob, row[17] - std::log(total), 1e-5);
  CHECK_EQUAL(entries[0].top.size(), 5u);
  for (std::size_t rank = 1; rank < 5; ++rank) CHECK(entries[0].top[rank - 1].second >= entries[0].top[rank].second);
  CHECK_EQUAL(entries[0].top[0].first, std::max_element(row.begin(), row.end()) - row.begin());
}
