// Random engines under random load from several threads: submit, cancel, clear, drain, close. Checks that every
// accepted choice has exactly one final event and keeps the stream rules, that answers are what they are alone, that
// matchers are released once, and that nothing stays held.
//
//     fuzz_engine --seconds 30 --seed 1
//
// Prints one JSON line; exits with 1 at the first round that goes wrong and names its seed.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>
#include <random>
#include <thread>
#include <unistd.h>

#include "core/error.h"
#include "engine/engine.h"
#include "engine_recorder.h"
#include "fake_model.h"
#include "naive_engine.h"

using namespace pocket;

namespace {

using Random = std::mt19937_64;
constexpr std::int64_t kMaxModelLen = 320;
constexpr unsigned kRoundLimit_s = 120;

std::uint64_t below(Random& random, std::uint64_t limit) { return random() % limit; }
bool chance(Random& random, unsigned percent) { return below(random, 100) < percent; }

// Allows a random half of the vocabulary for a number of tokens, and then nothing more.
struct RandomMatcher {
  std::uint64_t seed = 0;
  std::uint64_t num_tokens = 0;
  std::uint64_t position = 0;
  bool gets_stuck = false;
  std::atomic<int> num_released{0};

  static const MatcherFunctions* functions() {
    static const MatcherFunctions table{
        [](void* object, std::uint32_t* words, std::int64_t num_words) {
          auto& self = *static_cast<RandomMatcher*>(object);
          if (self.gets_stuck && self.position >= self.num_tokens / 2) return 1;
          for (std::int64_t word = 0; word < num_words; ++word) {
            const std::uint64_t place = self.position * 64 + static_cast<std::uint64_t>(word);
            words[word] = static_cast<std::uint32_t>(mix_bits(self.seed + place));
          }
          words[0] |= 1;
          return 0;
        },
        [](void* object, std::int32_t) {
          ++static_cast<RandomMatcher*>(object)->position;
          return 0;
        },
        [](void*, std::int64_t) { return 1; },
        [](void* object) {
          auto& self = *static_cast<RandomMatcher*>(object);
          return self.position >= self.num_tokens ? 1 : 0;
        },
        [](void*) { return "stuck"; },
        [](void* object) { ++static_cast<RandomMatcher*>(object)->num_released; },
    };
    return &table;
  }
};

// Proposes anything: one in 61 comes true.
class RandomDrafter : public Drafter {
 public:
  explicit RandomDrafter(std::uint64_t seed) : random_(seed) {}

  void propose(std::span<const DraftRequest> requests) override {
    for (const DraftRequest& request : requests) {
      for (std::uint64_t count = below(random_, 5); count > 0; --count) {
        request.draft->push_back(static_cast<std::int32_t>(below(random_, 61)));
      }
    }
  }

 private:
  Random random_;
};

struct Sent {
  Request request;
  bool accepted = false;
  bool has_matcher = false;
};

struct Totals {
  std::uint64_t num_rounds = 0, num_choices = 0, num_tokens = 0, num_preemptions = 0, num_reused_tokens = 0;
};

class Round {
 public:
  explicit Round(std::uint64_t seed) : random_(seed) {
    shape_.recurrent = chance(random_, 50);
    options_ = fake::small_options(static_cast<std::int32_t>(1 + below(random_, 6)), kMaxModelLen);
    options_.num_threads = static_cast<int>(1 + below(random_, 2));
    options_.num_snapshots = static_cast<std::int32_t>(below(random_, 12));
    const auto num_blocks = static_cast<std::int64_t>(20 + below(random_, 30));
    if (chance(random_, 60)) options_.kv_cache_bytes = fake::bytes_of_blocks(num_blocks);
    engine_options_.prefix_cache = chance(random_, 80);
    engine_options_.prefill_token_budget = static_cast<std::int64_t>(below(random_, 4) * 50);
    fails_ = chance(random_, 15);
    closes_early_ = chance(random_, 30);
    drafts_ = !shape_.recurrent && chance(random_, 40);
  }

  void run(Totals& totals) {
    fake::FakeRuntime fake(shape_, options_);
    std::atomic<std::uint64_t> num_passes{0};
    const std::uint64_t failure_seed = random_();
    fake.model->on_forward = [&, failure_seed](const Step&) {
      const std::uint64_t pass = ++num_passes;
      if (fails_ && mix_bits(failure_seed + pass) % 40 == 0) throw std::bad_alloc();
    };
    Engine engine(fake.runtime, engine_options_, drafts_ ? std::make_unique<RandomDrafter>(random_()) : nullptr);
    record::Recorder recorder(engine);
    std::mutex mutex;  // the recorder
    std::atomic<bool> draining{true};
    std::exception_ptr failure;  // the drainer's, until it has ended
    std::atomic<bool> has_failed{false};
    std::thread drainer([&] {
      try {
        while (draining) {
          pollfd events{engine.fileno(), POLLIN, 0};
          poll(&events, 1, 5);
          const std::lock_guard lock(mutex);
          recorder.drain();
        }
      } catch (...) {
        failure = std::current_exception();
        has_failed = true;
      }
    });
    constexpr std::uint64_t kNumThreads = 3;
    std::vector<std::list<Sent>> sent(kNumThreads);
    std::vector<std::thread> threads;
    for (std::uint64_t index = 0; index < kNumThreads; ++index) {
      threads.emplace_back([&, index, seed = random_()] { act(engine, recorder, mutex, sent[index], index, seed); });
    }
    if (closes_early_) {
      std::this_thread::sleep_for(std::chrono::microseconds(below(random_, 20000)));
      engine.close(chance(random_, 50) ? 0.0 : 100.0);
    }
    for (std::thread& thread : threads) thread.join();
    const auto is_done = [&] {
      const std::lock_guard lock(mutex);
      for (const auto& list : sent) {
        for (const Sent& each : list) {
          for (const Choice& choice : each.request.choices) {
            if (each.accepted && !recorder[choice.handle].finish) return false;
          }
        }
      }
      return true;
    };
    while (!closes_early_ && !has_failed && !is_done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const EngineStats stats = engine.stats();
    engine.close(100.0);
    draining = false;
    drainer.join();
    if (failure != nullptr) std::rethrow_exception(failure);
    recorder.drain();
    require(is_done(), "a choice without a final event");
    if (!closes_early_) {
      require(stats.num_free_blocks == stats.num_blocks, "blocks are still held");
      require(stats.num_free_slots == stats.num_slots && stats.num_running == 0 && stats.num_waiting == 0,
              "slots are still held");
    }
    for (const RandomMatcher& matcher : matchers_) require(matcher.num_released == 1, "a matcher not released once");
    check_answers(recorder, sent);
    ++totals.num_rounds;
    totals.num_preemptions += static_cast<std::uint64_t>(stats.num_preemptions);
    totals.num_reused_tokens += static_cast<std::uint64_t>(stats.prefix_cache_reused_tokens);
    totals.num_tokens += static_cast<std::uint64_t>(stats.num_generated_tokens);
    for (const auto& list : sent) totals.num_choices += list.size();
  }

 private:
  static void require(bool condition, const char* what) {
    if (!condition) throw std::runtime_error(what);
  }

  void act(Engine& engine, record::Recorder& recorder, std::mutex& mutex, std::list<Sent>& sent, std::uint64_t thread,
           std::uint64_t seed) {
    Random random(seed);
    std::uint64_t next_handle = thread * 1'000'000;
    const std::uint64_t num_actions = 10 + below(random, 60);
    for (std::uint64_t count = 0; count < num_actions; ++count) {
      const std::uint64_t action = below(random, 100);
      if (action < 55) {
        Sent& each = sent.emplace_back(make_request(random, next_handle));
        {
          const std::lock_guard lock(mutex);
          recorder.expect(each.request);
        }
        try {
          engine.submit(each.request);
          each.accepted = true;
        } catch (const Error& error) {
          require(error.kind() == ErrorKind::kEngine, error.what());
        }
      } else if (action < 80) {
        engine.cancel(below(random, 3) * 1'000'000 + below(random, next_handle % 1'000'000 + 2));
      } else if (action < 84) {
        engine.clear_prefix_cache();
      } else if (action < 88) {
        engine.set_prefill_token_budget(static_cast<std::int64_t>(below(random, 5) * 40));
      } else if (action < 92) {
        const EngineStats stats = engine.stats();
        require(stats.num_free_blocks >= 0 && stats.num_free_blocks <= stats.num_blocks, "impossible counters");
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(below(random, 3000)));
      }
    }
  }

  Sent make_request(Random& random, std::uint64_t& next_handle) {
    Sent sent;
    Request& request = sent.request;
    const std::uint64_t family = below(random, 4);
    const auto num_shared = static_cast<std::size_t>(below(random, 5) * 48);
    const auto num_own = static_cast<std::size_t>(1 + below(random, 60));
    for (std::size_t index = 0; index < num_shared; ++index) {
      request.prompt.push_back(static_cast<std::int32_t>(mix_bits(family * 1000 + index) % 61));
    }
    for (std::size_t index = 0; index < num_own; ++index) {
      request.prompt.push_back(static_cast<std::int32_t>(below(random, 61)));
    }
    SamplingParams& sampling = request.sampling;
    const auto room = static_cast<std::uint64_t>(kMaxModelLen) - request.prompt.size();
    sampling.max_tokens = static_cast<std::int64_t>(1 + below(random, std::min<std::uint64_t>(room, 120)));
    if (chance(random, 60)) sampling.temperature = 0.5f + static_cast<float>(below(random, 3));
    if (chance(random, 30)) sampling.top_k = static_cast<std::int32_t>(1 + below(random, 61));
    if (chance(random, 30)) sampling.top_p = 0.7f;
    if (chance(random, 20)) sampling.min_p = 0.1f;
    if (chance(random, 20)) sampling.repetition_penalty = 1.2f;
    if (chance(random, 20)) sampling.min_tokens = 5;
    sampling.logprobs = chance(random, 20);
    sampling.prompt_logprobs = chance(random, 10);
    sampling.num_top_logprobs = static_cast<std::int32_t>(below(random, 4));
    if (chance(random, 50)) request.stop_ids = {3, 17, 40};
    request.priority = static_cast<std::int64_t>(below(random, 3));
    if (chance(random, 10)) request.cache_salt = "salt";
    const std::uint64_t num_choices = chance(random, 25) ? 1 + below(random, 5) : 1;
    sent.has_matcher = chance(random, 15);
    for (std::uint64_t index = 0; index < num_choices; ++index) {
      Choice choice{next_handle++, random(), {}};
      if (sent.has_matcher) {
        const std::lock_guard lock(matcher_mutex_);
        RandomMatcher& matcher = matchers_.emplace_back();
        matcher.seed = random();
        matcher.num_tokens = 1 + below(random, 30);
        matcher.gets_stuck = chance(random, 20);
        choice.matcher = {RandomMatcher::functions(), &matcher};
      }
      request.choices.push_back(choice);
    }
    return sent;
  }

  // A tenth of the answers, and of those that were cut short what there is of them.
  void check_answers(record::Recorder& recorder, const std::vector<std::list<Sent>>& sent) {
    fake::FakeRuntime oracle(shape_, fake::small_options(1, kMaxModelLen));
    for (const auto& list : sent) {
      for (const Sent& each : list) {
        if (!each.accepted || each.has_matcher || !chance(random_, 10)) continue;
        for (const Choice& choice : each.request.choices) {
          const record::Stream& stream = recorder[choice.handle];
          const naive::Answer wanted = naive::answer(oracle.runtime, each.request, choice.seed);
          require(stream.tokens.size() <= wanted.tokens.size(), "an answer is too long");
          require(std::equal(stream.tokens.begin(), stream.tokens.end(), wanted.tokens.begin()), "an answer is wrong");
          const FinishReason reason = stream.finish->reason;
          if (reason == FinishReason::kCancelled || reason == FinishReason::kError) continue;
          require(stream.tokens.size() == wanted.tokens.size() && reason == wanted.reason,
                  "an answer ends elsewhere");
        }
      }
    }
  }

  Random random_;
  fake::Shape shape_;
  RuntimeOptions options_;
  EngineOptions engine_options_;
  bool fails_ = false;
  bool closes_early_ = false;
  bool drafts_ = false;
  std::mutex matcher_mutex_;
  std::list<RandomMatcher> matchers_;
};

std::uint64_t current_seed = 0;

void on_alarm(int) {
  std::fprintf(stderr, "{\"failed\": \"a round does not end\", \"seed\": %llu}\n",
               static_cast<unsigned long long>(current_seed));
  std::_Exit(3);
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 10;
  std::uint64_t seed = 0;
  for (int index = 1; index + 1 < argc; index += 2) {
    if (std::strcmp(argv[index], "--seconds") == 0) seconds = std::atof(argv[index + 1]);
    if (std::strcmp(argv[index], "--seed") == 0) seed = std::strtoull(argv[index + 1], nullptr, 10);
  }
  std::signal(SIGALRM, on_alarm);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  Totals totals;
  for (current_seed = seed; totals.num_rounds == 0 || std::chrono::steady_clock::now() < end; ++current_seed) {
    ::alarm(kRoundLimit_s);
    try {
      Round(current_seed).run(totals);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "{\"failed\": \"%s\", \"seed\": %llu}\n", error.what(),
                   static_cast<unsigned long long>(current_seed));
      return 1;
    }
  }
  const auto count = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf("{\"rounds\": %llu, \"requests\": %llu, \"tokens\": %llu, \"preemptions\": %llu, "
              "\"reused_tokens\": %llu, \"seed\": %llu}\n",
              count(totals.num_rounds), count(totals.num_choices), count(totals.num_tokens),
              count(totals.num_preemptions), count(totals.num_reused_tokens), count(seed));
  return 0;
}
