// Refusal, cancellation, failure, closing, and who goes when.
#include <atomic>
#include <new>
#include <thread>

#include "check.h"
#include "core/error.h"
#include "engine_bench.h"

using namespace pocket;
using bench::ask, bench::Bench, bench::Stream, bench::text;

TEST(bad_requests_are_refused_and_their_matchers_released) {
  Bench bench;
  const auto refuses = [&](const char* param, auto change) {
    FakeMatcher matcher;
    Request request = ask(text(5), 5);
    request.choices[0].matcher = matcher.as_matcher();
    change(request);
    try {
      bench.engine->submit(request);
    } catch (const Error& error) {
      CHECK_EQUAL(error.param(), param);
      CHECK_EQUAL(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::kConfiguration));
      CHECK_EQUAL(matcher.num_released, 1);
      return;
    }
    CHECK(false);
  };
  refuses("prompt_tokens", [](Request& request) { request.prompt.clear(); });
  refuses("prompt_tokens", [](Request& request) { request.prompt[2] = 61; });
  refuses("prompt_tokens", [](Request& request) { request.prompt[2] = -1; });
  refuses("prompt_tokens", [](Request& request) { request.prompt = text(512); });
  refuses("logit_bias", [](Request& request) { request.sampling.logit_bias = {{61, 1.0f}}; });
  refuses("max_tokens", [](Request& request) { request.sampling.max_tokens = 0; });
  refuses("handle", [](Request& request) { request.choices.push_back({request.choices[0].handle, 0, {}}); });
  bench.check_idle();
}

TEST(a_sequence_can_be_cancelled_in_every_phase) {
  for (const bool recurrent : {false, true}) {
    Bench bench({.recurrent = recurrent, .runtime = fake::small_options(2), .engine = {.prefill_token_budget = 64}});
    bench.gate.shut();
    const Request running = ask(text(40), 200), prefilling = ask(text(400, 1), 5), queued = ask(text(9, 2), 5);
    for (const Request* request : {&running, &prefilling, &queued}) bench.send(*request);
    bench.gate.wait_for_engine();
    const auto cancel = [&](const Request& request) {
      for (int times = 0; times < 3; ++times) bench.engine->cancel(request.choices[0].handle);
    };
    const auto ended = [&](const Request& request) {
      bench.recorder->drain();
      const auto& finish = (*bench.recorder)[request.choices[0].handle].finish;
      return finish && finish->reason == FinishReason::kCancelled;
    };
    bench.engine->cancel(123456789);
    cancel(queued);
    bench.gate.let(1);
    CHECK(ended(queued));
    bench.gate.let(2);
    cancel(prefilling);
    bench.gate.let(1);
    CHECK(ended(prefilling));
    CHECK_EQUAL((*bench.recorder)[running.choices[0].handle].tokens.size(), 4u);
    cancel(running);
    bench.gate.open();
    bench.recorder->wait_all();
    CHECK(ended(running));
    cancel(running);
    const Request after = ask(text(30), 10);
    bench.send(after);
    bench.check_answer(after);
    bench.check_idle();
    CHECK_EQUAL(bench.engine->stats().num_cancelled, 3);
  }
}

TEST(cancelling_the_leader_or_a_follower_leaves_the_other_choices) {
  for (const std::size_t victim : {0u, 2u}) {
    Bench bench({.engine = {.prefill_token_budget = 64}});
    bench.gate.shut();
    Request request = ask(text(300), 8, std::vector<Choice>(4));
    for (std::size_t choice = 0; choice < 4; ++choice) request.choices[choice].seed = choice;
    request.sampling.temperature = 1.0f;
    bench.send(request);
    bench.gate.wait_for_engine();
    bench.engine->cancel(request.choices[victim].handle);
    bench.gate.open();
    for (std::size_t choice = 0; choice < 4; ++choice) {
      const Stream& stream = bench.recorder->wait_end(request.choices[choice].handle);
      if (choice == victim) {
        CHECK(stream.finish->reason == FinishReason::kCancelled);
      } else {
        CHECK(stream.tokens == bench.expected(request, choice).tokens);
      }
    }
    bench.check_idle();
  }
}

TEST(a_failed_step_ends_its_sequences_alone) {
  Bench bench({.runtime = fake::small_options(2)});
  const Request first = ask(text(20), 100), second = ask(text(20, 1), 100), waiting = ask(text(20, 2), 10);
  int num_steps = 0;
  bench.on_step([&](const Step&) {
    if (++num_steps == 6) throw std::runtime_error("a kernel failed");
  });
  bench.gate.shut();
  for (const Request* request : {&first, &second, &waiting}) bench.send(*request);
  bench.gate.open();
  for (const Request* request : {&first, &second}) {
    const Stream& stream = bench.recorder->wait_end(request->choices[0].handle);
    CHECK(stream.finish->reason == FinishReason::kError);
    CHECK_EQUAL(stream.finish->error, "a kernel failed");
  }
  bench.check_answer(waiting);
  bench.check_idle();
  CHECK(bench.recorder->fatal().empty());
}

TEST(three_failed_steps_in_a_row_break_the_engine) {
  Bench bench({.runtime = fake::small_options(1)});
  bench.on_step([](const Step&) { throw std::bad_alloc(); });
  FakeMatcher matcher;
  std::vector<Request> requests;
  bench.gate.shut();
  for (int count = 0; count < 6; ++count) {
    requests.push_back(ask(text(10, count), 5));
    if (count == 4) requests.back().choices[0].matcher = matcher.as_matcher();
    bench.send(requests.back());
  }
  bench.gate.open();
  bench.recorder->wait_all();
  for (const Request& request : requests) {
    CHECK(bench.recorder->wait_end(request.choices[0].handle).finish->reason == FinishReason::kError);
  }
  CHECK_EQUAL(bench.recorder->fatal(), "The engine stopped after a failed step: out of memory");
  Request late = ask(text(5), 5);
  try {
    bench.engine->submit(late);
    CHECK(false);
  } catch (const Error& error) {
    CHECK_EQUAL(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::kEngine));
  }
  bench.check_idle();
  bench.engine->close(10.0);
  CHECK_EQUAL(matcher.num_released, 1);
}

TEST(closing_the_engine_ends_every_sequence) {
  Bench bench({.runtime = fake::small_options(2)});
  std::vector<Request> requests;
  FakeMatcher matcher;
  bench.gate.shut();
  for (int count = 0; count < 6; ++count) {
    requests.push_back(ask(text(10, count), 400));
    if (count == 5) requests.back().choices[0].matcher = matcher.as_matcher();
    bench.send(requests.back());
  }
  bench.gate.let(3);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    bench.gate.open();
  });
  bench.engine->close(10.0);
  opener.join();
  bench.recorder->drain();
  for (const Request& request : requests) {
    const auto& finish = (*bench.recorder)[request.choices[0].handle].finish;
    CHECK(finish && finish->reason == FinishReason::kCancelled);
  }
  CHECK_EQUAL(matcher.num_released, 1);
  bench.check_idle();
  CHECK_THROWS(Error, bench.engine->submit(ask({1}, 1)));
  bench.engine->close(10.0);
  bench.engine->cancel(requests[0].choices[0].handle);
}

TEST(close_does_not_wait_for_a_step_past_its_deadline) {
  Bench bench;
  FakeMatcher matcher;
  bench.gate.shut();
  Request request = ask(text(10), 50);
  request.choices[0].matcher = matcher.as_matcher();
  matcher.allowed.assign(60, {1});
  bench.send(request);
  bench.gate.wait_for_engine();
  bench.engine->close(0.02);
  bench.recorder->drain();
  CHECK((*bench.recorder)[request.choices[0].handle].finish->reason == FinishReason::kCancelled);
  bench.gate.open();
  bench.engine.reset();  // waits; the recorder has drained all there was
  CHECK_EQUAL(matcher.num_released, 1);
}

TEST(nothing_is_lost_when_many_threads_submit_while_the_engine_closes) {
  for (int round = 0; round < 20; ++round) {
    Bench bench;
    std::mutex mutex;
    std::atomic<int> num_refused{0};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (std::uint64_t count = 0; count < 50; ++count) {
          Request request;
          request.prompt = {1, 2, 3};
          request.sampling.max_tokens = 3;
          request.choices = {{static_cast<std::uint64_t>(thread) * 1000 + count, 0, {}}};
          {
            const std::lock_guard lock(mutex);
            bench.recorder->expect(request);
          }
          try {
            bench.engine->submit(request);
          } catch (const Error&) {
            ++num_refused;
          }
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
    bench.engine->close(10.0);
    for (std::thread& thread : threads) thread.join();
    bench.recorder->drain();
    int num_finished = 0;
    for (std::uint64_t thread = 0; thread < 4; ++thread) {
      for (std::uint64_t count = 0; count < 50; ++count) {
        num_finished += (*bench.recorder)[thread * 1000 + count].finish.has_value();
      }
    }
    CHECK_EQUAL(num_finished + num_refused.load(), 200);
    CHECK_EQUAL(bench.engine->stats().num_free_blocks, bench.engine->stats().num_blocks);
  }
}

TEST(higher_priority_is_admitted_first) {
  Bench bench({.runtime = fake::small_options(1)});
  bench.gate.shut();
  std::vector<Request> requests;
  for (const std::int64_t priority : {0, 0, 9, 3}) {
    requests.push_back(ask(text(10, static_cast<std::int32_t>(priority)), 4));
    requests.back().priority = priority;
    bench.send(requests.back());
    if (requests.size() == 1) bench.gate.wait_for_engine();
  }
  bench.gate.open();
  bench.recorder->wait_all();
  const auto first_batch = [&](std::size_t index) {
    return (*bench.recorder)[requests[index].choices[0].handle].batches[0];
  };
  CHECK(first_batch(0) < first_batch(2) && first_batch(2) < first_batch(3) && first_batch(3) < first_batch(1));
}

TEST(decoding_sequences_get_a_token_in_every_step_of_a_long_prefill) {
  Bench bench({.engine = {.prefill_token_budget = 32}});
  const Request talker = ask(text(10), 300);
  bench.gate.shut();
  bench.send(talker);
  bench.gate.let(3);
  std::atomic<int> num_mixed{0}, num_alone{0};
  bench.on_step([&](const Step& step) {
    bool decodes = false, prefills = false;
    for (const SequenceRows& rows : step.sequences) {
      decodes = decodes || !rows.chunked;
      prefills = prefills || rows.chunked;
      CHECK(rows.num_rows <= 32);
    }
    if (prefills) ++(decodes ? num_mixed : num_alone);
  });
  const Request reader = ask(text(400, 1), 2);
  bench.send(reader);
  bench.gate.open();
  bench.check_answer(reader);
  CHECK_EQUAL(num_mixed.load(), 13);
  CHECK_EQUAL(num_alone.load(), 0);
  bench.engine->set_prefill_token_budget(0);
  CHECK_EQUAL(bench.engine->prefill_token_budget(), 0);
  bench.check_answer(talker);
}

TEST(counters_agree_with_the_events) {
  Bench bench;
  std::vector<Request> requests;
  std::int64_t num_prompt_tokens = 0;
  for (std::int32_t index = 0; index < 9; ++index) {
    requests.push_back(ask(text(20 + 7 * index, index), 5 + index));
    num_prompt_tokens += 20 + 7 * index;
    bench.send(requests.back());
  }
  for (const Request& request : requests) bench.check_answer(request);
  const EngineStats stats = bench.engine->stats();
  CHECK_EQUAL(stats.num_generated_tokens, 9 * 5 + 36);
  CHECK_EQUAL(stats.num_prompt_tokens, num_prompt_tokens);
  CHECK_EQUAL(stats.num_completed, 9);
  CHECK_EQUAL(stats.prefix_cache_misses, 9);
  CHECK_EQUAL(stats.num_slots, 4);
  CHECK(stats.num_steps > 0);
  bench.check_idle();
}

TEST(the_batch_is_no_wider_than_the_slots) {
  Bench bench({.runtime = fake::small_options(3), .engine = {.max_batch_size = 64}});
  CHECK_EQUAL(bench.engine->max_batch_size(), 3);
  Bench narrow({.runtime = fake::small_options(3), .engine = {.max_batch_size = 2}});
  CHECK_EQUAL(narrow.engine->max_batch_size(), 2);
}
