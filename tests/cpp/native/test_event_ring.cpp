// A descriptor that says when to look, whatever the order of posts, wakes and drains.
#include "engine/event_ring.h"

#include <poll.h>

#include <thread>

#include "check.h"

namespace {

using pocket::EventRing, pocket::StepBatch;

StepBatch batch_of(std::int32_t token) {
  StepBatch batch;
  batch.handles = {1};
  batch.tokens = {token};
  batch.flags = {0};
  return batch;
}

bool is_readable(const EventRing& ring, int timeout_ms = 0) {
  pollfd events{ring.fileno(), POLLIN, 0};
  return poll(&events, 1, timeout_ms) == 1;
}

TEST(only_the_first_batch_asks_for_a_wake) {
  EventRing ring;
  CHECK(!is_readable(ring));
  CHECK(ring.post(batch_of(1)));
  CHECK(!ring.post(batch_of(2)));
  ring.wake();
  CHECK(is_readable(ring));
  const auto batches = ring.drain();
  CHECK_EQUAL(batches.size(), 2u);
  CHECK_EQUAL(batches[1].tokens[0], 2);
  CHECK(!is_readable(ring));
  CHECK(ring.post(batch_of(3)));
}

TEST(a_wake_that_comes_after_the_drain_does_not_stay) {
  EventRing ring;
  CHECK(ring.post(batch_of(1)));
  CHECK_EQUAL(ring.drain().size(), 1u);
  ring.wake();
  CHECK(is_readable(ring));
  CHECK(ring.drain().empty());
  CHECK(!is_readable(ring));
}

TEST(no_batch_is_left_without_a_wake) {
  constexpr std::int32_t kNumBatches = 20000;
  EventRing ring;
  std::thread engine([&] {
    for (std::int32_t token = 0; token < kNumBatches; ++token) {
      if (ring.post(batch_of(token))) ring.wake();
    }
  });
  std::int32_t num_seen = 0;
  bool in_order = true;
  while (num_seen < kNumBatches && is_readable(ring, 10000)) {
    for (const StepBatch& batch : ring.drain()) in_order = in_order && batch.tokens[0] == num_seen++;
  }
  engine.join();
  CHECK_EQUAL(num_seen, kNumBatches);
  CHECK(in_order);
}

}  // namespace
