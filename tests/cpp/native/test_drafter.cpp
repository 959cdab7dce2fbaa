// Speculation's seat: with any proposals, right or wrong, the answers are those of an engine without a drafter.
#include "engine/drafter.h"

#include <atomic>
#include <map>

#include "check.h"
#include "core/error.h"
#include "engine_bench.h"

using namespace pocket;
using bench::ask, bench::Bench, bench::Stream, bench::text;

namespace {

constexpr std::size_t kNumProposed = 4;

// The answers to come, and what became of the proposals.
struct Known {
  std::map<std::uint64_t, std::vector<std::int32_t>> answers;  // by handle
  std::map<std::uint64_t, std::size_t> num_prompt_tokens;
  std::size_t percent_spoiled = 0;
  std::atomic<std::size_t> num_proposed{0};

  void learn(Bench& bench, const Request& request) {
    for (std::size_t choice = 0; choice < request.choices.size(); ++choice) {
      answers[request.choices[choice].handle] = bench.expected(request, choice).tokens;
      num_prompt_tokens[request.choices[choice].handle] = request.prompt.size();
    }
  }
};

// Proposes what is known to follow, and spoils some of it.
class Oracle : public Drafter {
 public:
  explicit Oracle(Known& known) : known_(known) {}

  void propose(std::span<const DraftRequest> requests) override {
    for (const DraftRequest& request : requests) {
      const auto found = known_.answers.find(request.handle);
      if (found == known_.answers.end()) continue;
      std::size_t next = request.tokens.size() - known_.num_prompt_tokens.at(request.handle);
      for (; next < found->second.size() && request.draft->size() < kNumProposed; ++next) {
        const std::int32_t token = found->second[next];
        const bool is_spoiled = mix_bits(request.handle * 1000 + next) % 100 < known_.percent_spoiled;
        request.draft->push_back(is_spoiled ? (token + 1) % 61 : token);
      }
      known_.num_proposed += request.draft->size();
    }
  }

 private:
  Known& known_;
};

bench::Setup with(Known& known, bench::Setup setup = {}) {
  setup.make_drafter = [&known] { return std::make_unique<Oracle>(known); };
  return setup;
}

std::vector<Request> mixed_requests() {
  std::vector<Request> requests;
  for (std::int32_t index = 0; index < 9; ++index) {
    Request request = ask(text(11 + 13 * index, index), 30 + index, std::vector<Choice>(index % 4 == 3 ? 3 : 1));
    for (std::size_t choice = 0; choice < request.choices.size(); ++choice) request.choices[choice].seed = choice + 5;
    SamplingParams& sampling = request.sampling;
    if (index % 3 > 0) sampling.temperature = 0.9f;
    if (index % 3 == 2) {
      sampling.top_k = 20;
      sampling.repetition_penalty = 1.2f;
      sampling.frequency_penalty = 0.3f;
      sampling.min_tokens = 9;
    }
    if (index % 2 == 0) request.stop_ids = {7, 20, 33};
    sampling.logprobs = index % 4 == 0;
    sampling.num_top_logprobs = 2;
    requests.push_back(request);
  }
  return requests;
}

}  // namespace

TEST(answers_are_the_same_with_right_and_wrong_proposals) {
  for (const std::size_t percent_spoiled : {0u, 30u, 100u}) {
    for (const bool cache : {false, true}) {
      Known known;
      known.percent_spoiled = percent_spoiled;
      Bench plain({.engine = {.prefix_cache = cache}}), drafting(with(known, {.engine = {.prefix_cache = cache}}));
      for (const Request& request : mixed_requests()) {
        known.learn(drafting, request);
        drafting.send(request);
        drafting.check_answer(request);
        plain.send(request);
        plain.check_answer(request);
        // The rows that log probabilities come from are those of the tokens.
        const Stream& a = (*plain.recorder)[request.choices[0].handle];
        const Stream& b = (*drafting.recorder)[request.choices[0].handle];
        CHECK_EQUAL(a.rows.size(), b.rows.size());
        for (std::size_t row = 0; row < a.rows.size(); ++row) {
          CHECK_EQUAL(a.rows[row].logprob, b.rows[row].logprob);
          CHECK(a.rows[row].top == b.rows[row].top);
        }
      }
      CHECK(known.num_proposed > 100u);
      const std::int64_t num_plain = plain.engine->stats().num_steps, num_drafting = drafting.engine->stats().num_steps;
      CHECK_EQUAL(plain.engine->stats().num_generated_tokens, drafting.engine->stats().num_generated_tokens);
      if (percent_spoiled == 0) CHECK(num_drafting * 3 < num_plain);
      if (percent_spoiled == 30) CHECK(num_drafting < num_plain);
      if (percent_spoiled == 100) CHECK_EQUAL(num_drafting, num_plain);
      drafting.check_idle();
    }
  }
}

TEST(a_span_of_tokens_comes_in_one_batch) {
  Known known;
  Bench bench(with(known));
  const Request request = ask(text(20), 11);
  known.learn(bench, request);
  bench.send(request);
  bench.check_answer(request);
  const Stream& stream = (*bench.recorder)[request.choices[0].handle];
  CHECK(stream.batches == (std::vector<std::size_t>{0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2}));
}

TEST(proposals_are_dropped_when_blocks_run_short_and_answers_stay_right) {
  for (const bool cache : {false, true}) {
    Known known;
    known.percent_spoiled = 20;
    RuntimeOptions options = fake::small_options(4, 192);
    options.kv_cache_bytes = fake::bytes_of_blocks(20);
    Bench bench(with(known, {.runtime = options, .engine = {.prefill_token_budget = 64, .prefix_cache = cache}}));
    std::vector<Request> requests;
    for (std::int32_t index = 0; index < 8; ++index) {
      Request request = ask(text(40 + 9 * index, index), 70);
      request.sampling.temperature = 0.8f;
      known.learn(bench, request);
      requests.push_back(request);
    }
    send_together(bench.gate, requests, [&](const Request& request) { bench.send(request); });
    for (const Request& request : requests) bench.check_answer(request);
    CHECK(bench.engine->stats().num_preemptions > 0);
    bench.check_idle();
  }
}

TEST(what_was_accepted_is_reused_and_what_was_rejected_is_not) {
  Known known;
  known.percent_spoiled = 40;
  Bench bench(with(known));
  const Request request = ask(text(30), 60);
  known.learn(bench, request);
  bench.send(request);
  bench.check_answer(request);
  auto longer = request.prompt;
  const auto& answer = (*bench.recorder)[request.choices[0].handle].tokens;
  longer.insert(longer.end(), answer.begin(), answer.end());
  const Request again = ask(longer, 5);
  bench.send(again);
  bench.check_answer(again);
  CHECK_EQUAL((*bench.recorder)[again.choices[0].handle].report->num_cached_tokens, 80);
  bench.check_idle();
}

TEST(a_matcher_sees_accepted_tokens_alone) {
  FakeMatcher matcher;
  matcher.allowed = {{4}, {8}, {9}, {10}, {60}, {}};
  Known known;
  Bench bench(with(known));
  Request request = ask(text(20), 30);
  request.choices[0].matcher = matcher.as_matcher();
  const std::uint64_t handle = request.choices[0].handle;
  known.answers[handle] = {4, 8, 9, 11, 60, 1, 1, 1};  // the fourth is wrong
  known.num_prompt_tokens[handle] = 20;
  bench.send(request);
  const Stream& stream = bench.recorder->wait_end(handle);
  CHECK(stream.finish->reason == FinishReason::kStop);
  CHECK(stream.tokens == (std::vector<std::int32_t>{4, 8, 9, 10, 60}));
  CHECK(stream.batches == (std::vector<std::size_t>{0, 1, 1, 1, 2}));
  bench.check_idle();
}

TEST(models_with_recurrent_layers_refuse_a_drafter) {
  fake::FakeRuntime fake({.recurrent = true}, fake::small_options());
  Known known;
  try {
    Engine engine(fake.runtime, {}, std::make_unique<Oracle>(known));
    CHECK(false);
  } catch (const Error& error) {
    CHECK_EQUAL(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::kUnsupportedFeature));
    CHECK_EQUAL(error.param(), "drafter");
  }
}
