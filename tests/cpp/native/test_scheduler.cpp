// What the table of steps (tests/scheduling) does not say: numbers of the prefix cache, and what leaves it.
#include "check.h"
#include "scheduler_bench.h"

using namespace pocket;
using scheduling::Bench, scheduling::text;

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
