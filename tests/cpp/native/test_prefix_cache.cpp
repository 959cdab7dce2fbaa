#include "engine/prefix_cache.h"

#include <numeric>
#include <vector>

#include "check.h"
#include "engine/state_places.h"
#include "kernels/devices.h"

using namespace pocket;

namespace {

std::vector<std::int32_t> text(std::size_t num_tokens, std::int32_t first = 0) {
  std::vector<std::int32_t> tokens(num_tokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

struct Bench {
  explicit Bench(std::int32_t num_blocks = 8) : pool(num_blocks), cache(pool, nullptr, 16) {}

  std::vector<BlockKey> keys(const std::vector<std::int32_t>& tokens, const char* salt = "") {
    std::vector<BlockKey> result;
    cache.extend_keys(salt, tokens, result);
    return result;
  }
  // A sequence computes `tokens` and holds its blocks.
  std::vector<std::int32_t> compute(const std::vector<std::int32_t>& tokens, const char* salt = "") {
    const auto names = keys(tokens, salt);
    std::vector<std::int32_t> blocks;
    pool.allocate(static_cast<std::int64_t>(names.size()), blocks);
    for (std::size_t index = 0; index < names.size(); ++index) {
      const std::int32_t parent = index == 0 ? -1 : blocks[index - 1];
      CHECK_EQUAL(cache.insert(salt, names[index], parent, std::span(tokens).subspan(index * 16, 16), blocks[index]),
                  blocks[index]);
    }
    return blocks;
  }
  std::vector<std::int32_t> match(const std::vector<std::int32_t>& tokens, const char* salt = "") {
    std::vector<std::int32_t> blocks;
    cache.match(salt, keys(tokens, salt), tokens, blocks);
    return blocks;
  }

  BlockPool pool;
  PrefixCache cache;
};

}  // namespace

TEST(the_longest_common_beginning_is_found) {
  Bench bench;
  const auto blocks = bench.compute(text(48));
  CHECK((bench.match(text(48)) == blocks));
  CHECK((bench.match(text(60)) == blocks));
  auto other = text(48);
  other[40] = 7;  // in the third block
  CHECK((bench.match(other) == std::vector(blocks.begin(), blocks.begin() + 2)));
  CHECK(bench.match(text(48, 1)).empty());
  CHECK(bench.match(text(15)).empty());
}

TEST(another_salt_finds_nothing) {
  Bench bench;
  const auto blocks = bench.compute(text(32), "one");
  CHECK(bench.match(text(32)).empty());
  CHECK(bench.match(text(32), "two").empty());
  CHECK((bench.match(text(32), "one") == blocks));
}

TEST(keys_grow_with_the_text) {
  Bench bench;
  std::vector<BlockKey> keys, grown;
  bench.cache.extend_keys("s", text(40), keys);
  bench.cache.extend_keys("s", text(20), grown);
  CHECK_EQUAL(grown.size(), 1u);
  bench.cache.extend_keys("s", text(40), grown);
  CHECK(grown == keys);
  CHECK_EQUAL(keys.size(), 2u);
}

TEST(equal_content_stays_in_the_block_that_had_it) {
  Bench bench;
  const auto tokens = text(16);
  const auto blocks = bench.compute(tokens);
  std::vector<std::int32_t> mine;
  bench.pool.allocate(1, mine);
  CHECK_EQUAL(bench.cache.insert("", bench.keys(tokens)[0], -1, tokens, mine[0]), blocks[0]);
  CHECK_EQUAL(bench.cache.num_blocks(), 1);
}

TEST(equal_keys_of_different_texts_do_no_harm) {
  Bench bench;
  const auto tokens = text(16);
  const auto key = bench.keys(tokens)[0];
  bench.compute(tokens);
  const auto other = text(16, 100);
  std::vector<std::int32_t> mine;
  bench.pool.allocate(1, mine);
  CHECK_EQUAL(bench.cache.insert("", key, -1, other, mine[0]), PrefixCache::kCollision);
  CHECK_EQUAL(bench.cache.insert("salt", key, -1, tokens, mine[0]), PrefixCache::kCollision);
  CHECK_EQUAL(bench.cache.insert("", key, 5, tokens, mine[0]), PrefixCache::kCollision);
  std::vector<std::int32_t> found;
  bench.cache.match("", std::vector{key}, other, found);
  CHECK(found.empty());
}

TEST(ends_are_given_up_before_beginnings) {
  Bench bench(4);
  const auto blocks = bench.compute(text(48));
  bench.pool.release(blocks);
  CHECK_EQUAL(bench.pool.num_free(), 4);
  std::vector<std::int32_t> taken;
  bench.pool.allocate(2, taken);
  CHECK((bench.match(text(48)) == std::vector(blocks.begin(), blocks.begin() + 2)));
  bench.pool.allocate(2, taken);
  CHECK(bench.match(text(48)).empty());
  CHECK_EQUAL(bench.cache.num_blocks(), 0);
}

TEST(clear_forgets_everything_and_starts_a_generation) {
  Bench bench;
  const auto held = bench.compute(text(32));
  const auto idle = bench.compute(text(32, 50));
  bench.pool.release(idle);
  const auto generation = bench.cache.generation();
  bench.cache.clear();
  CHECK(bench.cache.generation() != generation);
  CHECK(bench.match(text(32)).empty());
  CHECK_EQUAL(bench.pool.num_free(), 6);
  bench.pool.release(held);
  CHECK_EQUAL(bench.pool.num_free(), 8);
}

TEST(snapshots_are_the_most_recent_and_go_with_their_blocks) {
  ThreadPool threads(1);
  Context context = open_device("reference", threads);
  RecurrentStates slots(context, 64, 2);
  StatePool states(2, 8, 2, 64);
  StatePlaces places(context, slots, 2);
  std::vector<StateMove> moves;
  // What the next step would begin with.
  const auto move = [&] {
    states.take_moves(moves);
    places.move(moves);
  };
  const auto put = [&](std::int32_t slot, float value) {
    copy_from_host(context, std::span<const float>(&value, 1), reinterpret_cast<float*>(slots.slot(slot)));
  };
  const auto get = [&](std::int32_t slot) {
    float value = 0.0f;
    copy_to_host(context, reinterpret_cast<const float*>(slots.slot(slot)), std::span(&value, 1));
    return value;
  };
  put(0, 1.0f);
  states.save(3, 0);
  move();
  put(0, 2.0f);
  states.save(4, 0);
  states.restore(3, 1);
  move();
  CHECK_EQUAL(get(1), 1.0f);
  states.save(5, 0);  // 4 is the least recently used
  CHECK(states.has(3) && !states.has(4) && states.has(5));
  CHECK_EQUAL(states.num_snapshots(), 2);
  states.copy(0, 1);
  states.restore(5, 0);  // saved above, and not moved yet: moves keep their order
  move();
  CHECK_EQUAL(get(1), 2.0f);
  CHECK_EQUAL(get(0), 2.0f);
  states.clear(1);
  move();
  CHECK_EQUAL(get(1), 0.0f);
  move();
  CHECK(moves.empty());

  BlockPool pool(8);
  PrefixCache cache(pool, &states, 16);
  std::vector<BlockKey> keys;
  cache.extend_keys("", text(16), keys);
  std::vector<std::int32_t> blocks;
  pool.allocate(4, blocks);
  cache.insert("", keys[0], -1, text(16), 3);
  pool.release(blocks);
  blocks.clear();
  pool.allocate(8, blocks);
  CHECK(!states.has(3));
}
