#include "engine/block_pool.h"

#include <vector>

#include "check.h"
#include "core/error.h"

using pocket::BlockPool;

namespace {

std::vector<std::int32_t> take(BlockPool& pool, std::int64_t count) {
  std::vector<std::int32_t> blocks;
  pool.allocate(count, blocks);
  return blocks;
}

}  // namespace

TEST(blocks_leave_in_rising_order_and_come_back) {
  BlockPool pool(5);
  const auto first = take(pool, 3);
  CHECK((first == std::vector<std::int32_t>{0, 1, 2}));
  CHECK_EQUAL(pool.num_free(), 2);
  pool.release(first);
  CHECK_EQUAL(pool.num_free(), 5);
  CHECK((take(pool, 3) == first));
}

TEST(too_many_blocks_are_an_error_and_none_is_taken) {
  BlockPool pool(2);
  std::vector<std::int32_t> blocks;
  CHECK_THROWS(pocket::Error, pool.allocate(3, blocks));
  CHECK(blocks.empty());
  CHECK_EQUAL(pool.num_free(), 2);
}

TEST(a_shared_block_is_free_when_its_last_holder_leaves) {
  BlockPool pool(1);
  const auto blocks = take(pool, 1);
  pool.share(blocks);
  pool.release(blocks);
  CHECK_EQUAL(pool.num_free(), 0);
  pool.release(blocks);
  CHECK_EQUAL(pool.num_free(), 1);
  CHECK_THROWS(pocket::Error, pool.release(blocks));
  CHECK_THROWS(pocket::Error, pool.share(blocks));
  CHECK_THROWS(pocket::Error, pool.keep(0));
}

TEST(kept_blocks_go_last_and_the_least_recently_held_first) {
  BlockPool pool(4);
  std::vector<std::int32_t> given_up;
  pool.on_give_up([&](std::int32_t block) { given_up.push_back(block); });
  const auto first = take(pool, 2);   // 0, 1
  const auto second = take(pool, 1);  // 2
  for (const std::int32_t block : {0, 1, 2}) pool.keep(block);
  pool.release(first);  // 1 leaves before 0: ends of sequences are older than their beginnings
  pool.release(second);
  CHECK_EQUAL(pool.num_free(), 4);
  CHECK((take(pool, 1) == std::vector<std::int32_t>{3}));
  CHECK(given_up.empty());
  CHECK((take(pool, 2) == std::vector<std::int32_t>{1, 0}));
  CHECK((given_up == std::vector<std::int32_t>{1, 0}));
  pool.share(second);  // in use again
  CHECK_EQUAL(pool.num_free(), 0);
}

TEST(a_forgotten_block_is_like_any_other) {
  BlockPool pool(2);
  int num_given_up = 0;
  pool.on_give_up([&](std::int32_t) { ++num_given_up; });
  const auto blocks = take(pool, 2);
  pool.keep(0);
  pool.keep(1);
  pool.forget(0);  // while held
  pool.release(blocks);
  pool.forget(1);  // while idle
  pool.forget(1);
  CHECK_EQUAL(pool.num_free(), 2);
  take(pool, 2);
  CHECK_EQUAL(num_given_up, 0);
}
