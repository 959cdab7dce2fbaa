// What answers are: their tokens, log probabilities and ends, whatever is shared, batched or recomputed.
#include "check.h"
#include "core/error.h"
#include "engine_bench.h"

using namespace pocket;
using bench::ask, bench::Bench, bench::Stream, bench::text;

namespace {

SamplingParams hot() {
  SamplingParams params;
  params.temperature = 0.8f;
  params.top_k = 30;
  params.top_p = 0.9f;
  params.min_p = 0.02f;
  params.repetition_penalty = 1.1f;
  params.frequency_penalty = 0.1f;
  params.presence_penalty = 0.05f;
  params.logit_bias = {{5, 1.5f}, {9, -2.0f}};
  params.min_tokens = 4;
  return params;
}

}  // namespace

TEST(answers_are_what_they_are_alone) {
  for (const bool recurrent : {false, true}) {
    for (const std::int64_t budget : {0, 64, 512}) {
      Bench bench({.recurrent = recurrent, .engine = {.prefill_token_budget = budget}});
      std::vector<Request> requests;
      for (std::int32_t index = 0; index < 14; ++index) {
        Request request = ask(text(3 + index * 17, index), 5 + index * 3);
        if (index % 2 == 1) {
          const std::int64_t max_tokens = request.sampling.max_tokens;
          request.sampling = hot();
          request.sampling.max_tokens = max_tokens;
          request.choices[0].seed = static_cast<std::uint64_t>(index) * 77;
        }
        if (index % 3 == 0) request.stop_ids = {7, 20, 33};
        requests.push_back(request);
      }
      for (const Request& request : requests) bench.send(request);
      for (const Request& request : requests) bench.check_answer(request);
      bench.check_idle();
    }
  }
}

TEST(a_stop_id_ends_the_answer_flagged) {
  Bench bench;
  Request request = ask(text(10), 30);
  const auto free = bench.run(request).tokens;
  CHECK_EQUAL(free.size(), 30u);
  CHECK(bench.recorder->wait_end(request.choices[0].handle).finish->reason == FinishReason::kLength);
  Request stopping = ask(text(10), 30);
  stopping.stop_ids = {free[9], 1000};
  const Stream& stream = bench.run(stopping);
  CHECK(stream.finish->reason == FinishReason::kStop);
  CHECK_EQUAL(stream.tokens.back(), free[9]);
  CHECK(stream.tokens.size() <= 10u);
  bench.check_idle();
}

TEST(a_request_may_fill_the_context) {
  for (const bool recurrent : {false, true}) {
    Bench bench({.recurrent = recurrent});
    for (const auto& [num_prompt, num_answer] : {std::pair{511, 1}, {500, 12}, {1, 511}}) {
      const Request request = ask(text(num_prompt), num_answer);
      bench.send(request);
      bench.check_answer(request);
    }
    // An answer that would go on ends with the context.
    Request greedy = ask(text(508), 4);
    bench.recorder->expect(greedy);
    greedy.sampling.max_tokens = 100;
    bench.engine->submit(greedy);
    CHECK_EQUAL(bench.recorder->wait_end(greedy.choices[0].handle).tokens.size(), 4u);
    bench.check_idle();
  }
}

TEST(ids_past_the_tokenizers_vocabulary_are_never_generated) {
  Bench bench({.engine = {.vocab_size = 13}});
  Request request = ask({1, 2, 3}, 60);
  request.sampling.temperature = 3.0f;
  request.sampling.logprobs = true;
  request.sampling.num_top_logprobs = 20;
  const Stream& stream = bench.run(request);
  for (const std::int32_t token : stream.tokens) CHECK(token < 13);
  for (const Logprob& row : stream.rows) CHECK_EQUAL(row.top.size(), 13u);
  Request outside = ask({13}, 1);
  CHECK_THROWS(Error, bench.engine->submit(outside));
}

TEST(choices_share_one_prefill) {
  for (const bool recurrent : {false, true}) {
    Bench bench({.recurrent = recurrent, .runtime = fake::small_options(8)});
    Request request = ask(text(107), 20, std::vector<Choice>(6));
    request.sampling.temperature = 1.0f;
    for (std::size_t choice = 0; choice < 6; ++choice) request.choices[choice].seed = 100 + choice;
    bench.send(request);
    bench.check_answer(request);
    CHECK_EQUAL(bench.engine->stats().num_prompt_tokens, 107);
    bench.check_idle();
  }
}

TEST(more_choices_than_slots_are_served) {
  for (const bool cache : {false, true}) {
    for (const bool recurrent : {false, true}) {
      Bench bench({.recurrent = recurrent, .engine = {.prefix_cache = cache}});
      Request request = ask(text(75), 9, std::vector<Choice>(11));
      request.sampling.temperature = 1.0f;
      request.sampling.prompt_logprobs = true;
      for (std::size_t choice = 0; choice < 11; ++choice) request.choices[choice].seed = choice;
      bench.send(request);
      bench.check_answer(request);
      for (const Choice& choice : request.choices) {
        CHECK_EQUAL((*bench.recorder)[choice.handle].report->logprobs.size(), 74u);
      }
      bench.check_idle();
    }
  }
}

TEST(preempted_sequences_go_on_as_if_nothing_had_been) {
  for (const bool cache : {false, true}) {
    for (const bool recurrent : {false, true}) {
      RuntimeOptions options = fake::small_options(4, 192);
      options.kv_cache_bytes = fake::bytes_of_blocks(20);
      const EngineOptions engine_options{.prefill_token_budget = 64, .prefix_cache = cache};
      Bench bench({.recurrent = recurrent, .runtime = options, .engine = engine_options});
      std::vector<Request> requests;
      for (std::int32_t index = 0; index < 8; ++index) {
        Request request = ask(text(40 + 9 * index, index), 70);
        request.sampling = hot();
        request.sampling.max_tokens = 70;
        requests.push_back(request);
      }
      send_together(bench.gate, requests, [&](const Request& request) { bench.send(request); });
      for (const Request& request : requests) bench.check_answer(request);
      CHECK(bench.engine->stats().num_preemptions > 0);
      bench.check_idle();
    }
  }
}

TEST(a_prefix_of_twenty_requests_is_computed_once) {
  for (const bool recurrent : {false, true}) {
    Bench bench({.recurrent = recurrent, .runtime = fake::small_options(8)});
    bench.gate.shut();
    std::vector<Request> requests;
    for (std::int32_t index = 0; index < 20; ++index) {
      auto prompt = text(320);
      const auto own = text(11 + index, index + 1);
      prompt.insert(prompt.end(), own.begin(), own.end());
      Request request = ask(prompt, 12);
      request.sampling.temperature = 0.7f;
      requests.push_back(request);
      bench.send(request);
    }
    bench.gate.open();
    for (const Request& request : requests) bench.check_answer(request);  // the oracle reuses nothing
    const EngineStats stats = bench.engine->stats();
    CHECK_EQUAL(stats.prefix_cache_reused_tokens, 19 * 320);
    CHECK_EQUAL(stats.num_prompt_tokens, 320 + 20 * 11 + 190);
    CHECK_EQUAL(stats.prefix_cache_hits, 19);
    int num_cached = 0;
    for (const Request& request : requests) {
      num_cached += (*bench.recorder)[request.choices[0].handle].report->num_cached_tokens == 320;
    }
    CHECK_EQUAL(num_cached, 19);
    bench.check_idle();
  }
}

TEST(a_repeated_prompt_is_reused_until_the_cache_is_cleared) {
  for (const bool recurrent : {false, true}) {
    Bench bench({.recurrent = recurrent});
    const auto cached = [&](const std::string& salt) {
      Request request = ask(text(128), 6);
      request.cache_salt = salt;
      bench.send(request);
      bench.check_answer(request);
      return (*bench.recorder)[request.choices[0].handle].report->num_cached_tokens;
    };
    CHECK_EQUAL(cached(""), 0);
    CHECK_EQUAL(cached(""), recurrent ? 64 : 112);
    CHECK_EQUAL(cached("mine"), 0);
    bench.engine->clear_prefix_cache();
    CHECK_EQUAL(cached(""), 0);
    CHECK(bench.engine->stats().num_cached_blocks > 0);
    bench.check_idle();
  }
}

TEST(a_full_cache_makes_room_and_answers_stay_right) {
  for (const bool recurrent : {false, true}) {
    RuntimeOptions options = fake::small_options(3, 256);
    options.kv_cache_bytes = fake::bytes_of_blocks(24);
    options.num_snapshots = 3;
    Bench bench({.recurrent = recurrent, .runtime = options});
    std::vector<Request> requests;
    for (std::int32_t round = 0; round < 3; ++round) {
      for (std::int32_t kind = 0; kind < 6; ++kind) {
        Request request = ask(text(100 + 25 * (kind % 3), kind), 20);
        request.sampling.temperature = 1.0f;
        request.choices[0].seed = static_cast<std::uint64_t>(round);
        requests.push_back(request);
        bench.send(request);
      }
    }
    for (const Request& request : requests) bench.check_answer(request);
    bench.check_idle();
  }
}

TEST(log_probabilities_are_those_of_the_raw_logits) {
  Bench bench;
  Request request = ask(text(90), 12);
  request.sampling = hot();
  request.sampling.max_tokens = 12;
  request.sampling.min_tokens = 0;
  request.sampling.logprobs = request.sampling.prompt_logprobs = true;
  request.sampling.num_top_logprobs = 3;
  const Stream& stream = bench.run(request);
  CHECK_EQUAL(stream.rows.size(), 12u);
  CHECK_EQUAL(stream.report->logprobs.size(), 89u);
  // The same text as a prompt, whose entries are computed in chunks.
  auto whole = request.prompt;
  whole.insert(whole.end(), stream.tokens.begin(), stream.tokens.end());
  Request again = ask(whole, 1);
  again.sampling.prompt_logprobs = true;
  again.sampling.num_top_logprobs = 3;
  const Stream& second = bench.run(again);
  CHECK_EQUAL(second.report->num_cached_tokens, 0);
  CHECK_EQUAL(second.report->logprobs.size(), whole.size() - 1);
  for (std::size_t index = 0; index < second.report->logprobs.size(); ++index) {
    const Logprob& entry = second.report->logprobs[index];
    CHECK_EQUAL(entry.row, static_cast<std::int32_t>(index) + 1);
    const Logprob& first = index < 89 ? stream.report->logprobs[index] : stream.rows[index - 89];
    CHECK_EQUAL(entry.logprob, first.logprob);
    CHECK(entry.top == first.top);
    CHECK_EQUAL(entry.top.size(), 3u);
  }
  bench.check_idle();
}

TEST(stop_rows_have_no_log_probability) {
  Bench bench;
  Request request = ask(text(10), 40);
  request.sampling.logprobs = true;
  const auto tokens = bench.run(request).tokens;
  Request stopping = ask(text(10), 40);
  stopping.sampling.logprobs = true;
  stopping.stop_ids = {tokens[5]};
  const Stream& stream = bench.run(stopping);  // the recorder checks each row
  CHECK_EQUAL(stream.rows.size(), stream.tokens.size() - 1);
}

TEST(matchers_shape_the_answer_and_are_released_once) {
  Bench bench;
  FakeMatcher first, second, stuck;
  first.allowed = {{4}, {8, 9}, {60}, {}};
  second.allowed = {{4}, {8}, {17}};
  stuck.allowed = {{4}, {}};
  Request complete = ask(text(20), 30);  // no stop ids: it ends when the matcher is done
  complete.choices[0].matcher = first.as_matcher();
  Request stopped = ask(text(20), 30);
  stopped.stop_ids = {17};
  stopped.choices[0].matcher = second.as_matcher();
  Request lost = ask(text(20), 30);
  lost.stop_ids = {17};
  lost.choices[0].matcher = stuck.as_matcher();
  Request other = ask(text(30), 30);
  for (const Request* request : {&complete, &stopped, &lost, &other}) bench.send(*request);
  const Stream& a = bench.recorder->wait_end(complete.choices[0].handle);
  CHECK(a.finish->reason == FinishReason::kStop);
  CHECK_EQUAL(a.tokens.size(), 3u);
  CHECK_EQUAL(a.tokens[2], 60);
  const Stream& b = bench.recorder->wait_end(stopped.choices[0].handle);
  CHECK(b.finish->reason == FinishReason::kStop && b.tokens == (std::vector<std::int32_t>{4, 8, 17}));
  const Stream& c = bench.recorder->wait_end(lost.choices[0].handle);
  CHECK(c.finish->reason == FinishReason::kError && c.tokens == std::vector<std::int32_t>{4});
  CHECK_EQUAL(c.finish->error, "The constraint allows none of the tokens that this model can generate.");
  bench.check_answer(other);
  bench.check_idle();
  bench.engine->close(10.0);
  for (const FakeMatcher* matcher : {&first, &second, &stuck}) CHECK_EQUAL(matcher->num_released, 1);
}
