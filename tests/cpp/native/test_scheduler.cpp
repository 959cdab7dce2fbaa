#include "engine/scheduler.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>

#include "check.h"

using namespace pocket;

namespace {

std::vector<std::int32_t> text(std::int64_t num_tokens, std::int32_t kind = 0) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(num_tokens));
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    tokens[index] = static_cast<std::int32_t>(index * 31 % 97) + 100 * kind;
  }
  return tokens;
}

DeltaNetShape tiny_states() {
  DeltaNetShape shape;
  shape.num_layers = shape.num_key_heads = shape.num_value_heads = 1;
  shape.key_dim = shape.value_dim = 4;
  return shape;
}

struct Options {
  std::int32_t num_blocks = 64;
  std::int32_t num_slots = 4;
  std::int64_t budget = 128;
  std::int64_t beside_decodes = 0;
  bool cache = true;
  bool recurrent = false;
  std::int32_t num_snapshots = 16;
};

// Plays the engine: computes nothing, samples token 1.
struct Bench {
  explicit Bench(const Options& options)
      : slots(tiny_states(), options.num_slots),
        pool(options.num_blocks),
        states(options.recurrent ? std::make_unique<StatePool>(slots, options.num_blocks, options.num_snapshots)
                                 : nullptr),
        cache(options.cache ? std::make_unique<PrefixCache>(pool, states.get()) : nullptr),
        scheduler(pool, cache.get(), states.get(), options.num_slots) {
    scheduler.set_prefill_token_budget(options.budget, options.beside_decodes);
  }

  std::vector<Sequence*> add(const std::vector<std::int32_t>& prompt, std::size_t num_choices = 1,
                             std::int64_t priority = 0, bool prompt_logprobs = false) {
    auto group = std::make_shared<PromptGroup>();
    group->priority = priority;
    group->sampling.prompt_logprobs = prompt_logprobs;
    std::vector<Sequence*> added;
    for (std::size_t choice = 0; choice < num_choices; ++choice) {
      auto sequence = std::make_unique<Sequence>();
      sequence->group = group;
      sequence->handle = sequence->arrival = sequences.size();
      sequence->tokens = prompt;
      sequence->num_prompt_tokens = static_cast<std::int64_t>(prompt.size());
      if (cache != nullptr) extend_keys("", prompt, sequence->keys);
      added.push_back(sequence.get());
      sequences.push_back(std::move(sequence));
    }
    scheduler.add(added);
    return added;
  }

  // One step, as "handle:start+length" per entry, a star behind chunks.
  std::string step() {
    const StepPlan& plan = scheduler.schedule();
    std::ostringstream shown;
    std::vector<Sequence*> sampled;
    for (const PlannedRows& rows : plan.rows) {
      if (shown.tellp() > 0) shown << ' ';
      shown << rows.sequence->handle << ':' << rows.start << '+' << rows.length << (rows.chunked ? "*" : "");
      CHECK(static_cast<std::int64_t>(rows.sequence->blocks.size()) * 16 >= rows.start + rows.length);
      if (rows.completes()) sampled.push_back(rows.sequence);
    }
    for (const PlannedRows& rows : plan.rows) {
      num_prompt_tokens += std::max<std::int64_t>(
          0, std::min(rows.start + rows.length, rows.sequence->num_prompt_tokens) - rows.start);
      scheduler.advance(rows);
    }
    for (std::size_t index = 0, count = sampled.size(); index < count; ++index) {
      if (sampled[index]->num_generated() > 0) continue;
      for (const auto& fork : scheduler.fork(*sampled[index])) sampled.push_back(fork.follower);
    }
    for (Sequence* sequence : sampled) {
      sequence->prompt_reported = true;
      sequence->tokens.push_back(1);
    }
    return shown.str();
  }
  void finish_all() {
    for (const auto& sequence : sequences) scheduler.finish(*sequence);
    CHECK_EQUAL(pool.num_free(), pool.num_blocks());
    CHECK_EQUAL(scheduler.num_free_slots(), scheduler.max_num_sequences());
    CHECK_EQUAL(scheduler.num_waiting(), 0);
  }

  DeltaNetStates slots;
  BlockPool pool;
  std::unique_ptr<StatePool> states;
  std::unique_ptr<PrefixCache> cache;
  Scheduler scheduler;
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::int64_t num_prompt_tokens = 0;
};

}  // namespace

TEST(decoding_goes_on_while_a_long_prompt_is_read) {
  Bench bench({});
  bench.add(text(20));
  CHECK_EQUAL(bench.step(), "0:0+20*");
  bench.add(text(300, 1));
  CHECK_EQUAL(bench.step(), "0:20+1 1:0+128*");
  CHECK_EQUAL(bench.step(), "0:21+1 1:128+128*");
  CHECK_EQUAL(bench.step(), "0:22+1 1:256+44*");
  CHECK_EQUAL(bench.step(), "0:23+1 1:300+1");
  bench.finish_all();
}

TEST(a_budget_of_nothing_means_whole_prompts) {
  Bench bench({.budget = 0});
  bench.add(text(300));
  bench.add(text(200, 1));
  CHECK_EQUAL(bench.step(), "0:0+300* 1:0+200*");
  bench.finish_all();
}

TEST(the_end_of_a_budget_is_not_given_to_a_long_prompt) {
  Bench bench({});
  bench.add(text(100));
  bench.add(text(200, 1));
  bench.add(text(20, 2));
  CHECK_EQUAL(bench.step(), "0:0+100* 2:0+20*");
  CHECK_EQUAL(bench.step(), "0:100+1 2:20+1 1:0+128*");
  bench.finish_all();
}

TEST(those_that_decode_wait_for_fewer_prompt_tokens) {
  Bench bench({.beside_decodes = 32});
  bench.add(text(200));
  CHECK_EQUAL(bench.step(), "0:0+128*");
  CHECK_EQUAL(bench.step(), "0:128+72*");
  bench.add(text(40, 1));
  bench.add(text(40, 2));
  CHECK_EQUAL(bench.step(), "0:200+1 1:0+32*");
  CHECK_EQUAL(bench.step(), "0:201+1 1:32+8*");
  CHECK_EQUAL(bench.step(), "0:202+1 1:40+1 2:0+32*");
  bench.scheduler.set_prefill_token_budget(128);
  bench.add(text(128, 3));
  CHECK_EQUAL(bench.step(), "0:203+1 1:41+1 2:32+8* 3:0+120*");
  bench.finish_all();
}

TEST(priority_goes_first_and_then_the_oldest) {
  Bench bench({.num_slots = 1});
  for (const std::int64_t priority : {0, 0, 5, -1}) bench.add(text(10, static_cast<int>(priority) + 1), 1, priority);
  std::string order;
  for (int count = 0; count < 4; ++count) {
    order += bench.step().substr(0, 1);
    bench.scheduler.finish(*bench.scheduler.running()[0]);
  }
  CHECK_EQUAL(order, "2013");
}

TEST(the_last_in_rank_gives_its_blocks_back) {
  Bench bench({.num_blocks = 4, .cache = false});
  bench.add(text(30));
  bench.add(text(16, 1));
  CHECK_EQUAL(bench.step(), "0:0+30* 1:0+16*");
  CHECK_EQUAL(bench.step(), "0:30+1 1:16+1");  // 1 takes the last block
  CHECK_EQUAL(bench.step(), "0:31+1 1:17+1");
  CHECK_EQUAL(bench.step(), "0:32+1");
  CHECK_EQUAL(bench.scheduler.counts().num_preemptions, 1);
  CHECK_EQUAL(bench.scheduler.num_waiting(), 1);
  bench.scheduler.finish(*bench.sequences[0]);
  CHECK_EQUAL(bench.step(), "1:0+19*");  // prompt and answer again
  CHECK_EQUAL(bench.step(), "1:19+1");
  bench.finish_all();
}

TEST(choices_follow_the_one_that_reads_the_prompt) {
  Bench bench({.num_slots = 3});
  const auto choices = bench.add(text(40), 5);
  CHECK_EQUAL(bench.step(), "0:0+40*");
  CHECK_EQUAL(bench.scheduler.running().size(), 3u);
  CHECK_EQUAL(bench.scheduler.num_waiting(), 2);
  // Full blocks are shared, the partly filled one is not.
  CHECK_EQUAL(choices[0]->blocks[1], choices[1]->blocks[1]);
  CHECK(choices[0]->blocks[2] != choices[1]->blocks[2]);
  CHECK_EQUAL(bench.pool.num_holders(choices[0]->blocks[0]), 3);
  CHECK_EQUAL(bench.step(), "0:40+1 1:40+1 2:40+1");
  bench.scheduler.finish(*choices[1]);
  CHECK_EQUAL(bench.step(), "0:41+1 2:41+1 3:32+8*");  // the rest from the cache
  bench.finish_all();
}

TEST(followers_of_a_cancelled_choice_find_another) {
  Bench bench({});
  const auto choices = bench.add(text(300), 3);
  CHECK_EQUAL(bench.step(), "0:0+128*");
  bench.scheduler.finish(*choices[1]);  // a follower
  bench.scheduler.finish(*choices[0]);  // the leader
  CHECK_EQUAL(bench.scheduler.num_waiting(), 1);
  CHECK_EQUAL(bench.step(), "2:128+128*");  // what the leader had computed is in the cache
  bench.finish_all();
}

TEST(a_shared_prefix_is_computed_once) {
  for (const std::int64_t num_shared : {256, 192, 200}) {
    for (const bool recurrent : {false, true}) {
      Bench bench({.num_blocks = 600, .num_slots = 8, .recurrent = recurrent});
      for (std::int32_t index = 0; index < 20; ++index) {
        auto prompt = text(num_shared);
        const auto own = text(30, index + 1);
        prompt.insert(prompt.end(), own.begin(), own.end());
        bench.add(prompt);
      }
      std::size_t num_started = 0;
      while (num_started < 20) {
        CHECK(!bench.step().empty());
        for (const auto& sequence : bench.sequences) {
          if (sequence->num_generated() == 0 || sequence->phase == Phase::kDone) continue;
          bench.scheduler.finish(*sequence);
          ++num_started;
        }
      }
      const std::int64_t grain = recurrent ? 64 : 16;
      const std::int64_t num_reused = num_shared / grain * grain;
      CHECK_EQUAL(bench.num_prompt_tokens, num_reused + 20 * (num_shared - num_reused + 30));
      CHECK_EQUAL(bench.scheduler.counts().num_reused_tokens, 19 * num_reused);
      CHECK_EQUAL(bench.scheduler.counts().cache_hits, 19);
      CHECK_EQUAL(bench.scheduler.counts().cache_misses, 1);
      bench.finish_all();
    }
  }
}

TEST(one_token_at_least_is_computed) {
  Bench bench({});
  bench.add(text(64));
  bench.step();
  bench.scheduler.finish(*bench.sequences[0]);
  bench.add(text(64));
  CHECK_EQUAL(bench.step(), "1:48+16*");
  CHECK_EQUAL(bench.sequences[1]->num_cached_tokens, 48);
  bench.finish_all();
}

TEST(prompt_logprobs_reuse_nothing_and_come_in_small_chunks) {
  Bench bench({});
  bench.add(text(100));
  bench.step();
  bench.add(text(100), 1, 0, true);
  bench.add(text(100, 3), 1, 0, true);
  bench.add(text(40, 4));
  CHECK_EQUAL(bench.step(), "0:100+1 1:0+64* 3:0+40*");
  CHECK_EQUAL(bench.step(), "0:101+1 3:40+1 1:64+36*");
  CHECK_EQUAL(bench.step(), "0:102+1 1:100+1 3:41+1 2:0+64*");
  bench.finish_all();
}

TEST(recurrent_prompts_are_cut_at_chunks_and_snapshots) {
  Bench bench({.budget = 150, .recurrent = true});
  bench.add(text(410));
  CHECK_EQUAL(bench.step(), "0:0+128*");
  CHECK_EQUAL(bench.step(), "0:128+128*");  // a snapshot at 256
  CHECK_EQUAL(bench.step(), "0:256+128*");  // and at 384
  CHECK_EQUAL(bench.step(), "0:384+26*");
  CHECK_EQUAL(bench.step(), "0:410+1");
  CHECK_EQUAL(bench.states->num_snapshots(), 2);
  bench.scheduler.finish(*bench.sequences[0]);
  bench.add(text(410));
  CHECK_EQUAL(bench.step(), "1:384+26*");
  bench.scheduler.finish(*bench.sequences[1]);
  bench.add(text(300));
  CHECK_EQUAL(bench.step(), "2:256+44*");
  bench.finish_all();
}

TEST(a_small_budget_still_gives_recurrent_prompts_a_chunk) {
  Bench bench({.budget = 10, .recurrent = true});
  bench.add(text(100));
  bench.add(text(100, 1));
  CHECK_EQUAL(bench.step(), "0:0+64*");
  CHECK_EQUAL(bench.step(), "0:64+36*");
  CHECK_EQUAL(bench.step(), "0:100+1 1:0+64*");
  bench.finish_all();
}

TEST(replayed_answers_of_recurrent_models_are_computed_one_by_one) {
  Bench bench({.num_blocks = 10, .num_slots = 2, .recurrent = true});
  bench.add(text(64));
  bench.add(text(65, 1));
  bench.step();
  while (bench.scheduler.counts().num_preemptions == 0) bench.step();
  CHECK_EQUAL(bench.sequences[1]->num_tokens(), 81);
  bench.scheduler.finish(*bench.sequences[0]);
  CHECK_EQUAL(bench.step(), "1:64+1*");  // from the snapshot at 64
  CHECK_EQUAL(bench.step(), "1:65+16");
  CHECK_EQUAL(bench.step(), "1:81+1");
  bench.finish_all();
}

TEST(answers_are_reused_only_without_recurrent_layers) {
  for (const bool recurrent : {false, true}) {
    Bench bench({.recurrent = recurrent});
    bench.add(text(70));
    for (int count = 0; count < 40; ++count) bench.step();
    auto longer = bench.sequences[0]->tokens;
    longer.push_back(5);
    bench.scheduler.finish(*bench.sequences[0]);
    bench.add(longer);
    bench.step();
    CHECK_EQUAL(bench.sequences[1]->num_cached_tokens, recurrent ? 64 : 96);
    bench.finish_all();
  }
}

TEST(a_cleared_cache_is_not_continued) {
  Bench bench({});
  bench.add(text(200));
  bench.step();
  bench.cache->clear();
  bench.step();
  CHECK_EQUAL(bench.cache->num_blocks(), 0);
  bench.scheduler.finish(*bench.sequences[0]);
  bench.add(text(200));
  CHECK_EQUAL(bench.step(), "1:0+128*");
  bench.finish_all();
}

TEST(without_a_cache_nothing_is_shared) {
  Bench bench({.cache = false});
  bench.add(text(100));
  bench.add(text(28));
  CHECK_EQUAL(bench.step(), "0:0+100* 1:0+28*");
  CHECK_EQUAL(bench.scheduler.counts().cache_misses, 0);
  bench.finish_all();
}
