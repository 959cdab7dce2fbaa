// A step as plain data: what is sent to another process gives the same there.
#include "engine/step.h"

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "check.h"
#include "engine/step_runner.h"
#include "fake_model.h"
#include "scheduler_bench.h"

using namespace pocket;
using scheduling::text;

namespace {

template <class T>
void write(std::vector<std::byte>& bytes, const std::vector<T>& items) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::uint64_t count = items.size();
  const auto* head = reinterpret_cast<const std::byte*>(&count);
  const auto* body = reinterpret_cast<const std::byte*>(items.data());
  bytes.insert(bytes.end(), head, head + sizeof count);
  bytes.insert(bytes.end(), body, body + count * sizeof(T));
}

template <class T>
void read(const std::byte*& bytes, std::vector<T>& items) {
  std::uint64_t count = 0;
  std::memcpy(&count, bytes, sizeof count);
  items.resize(count);
  if (count > 0) std::memcpy(items.data(), bytes + sizeof count, count * sizeof(T));
  bytes += sizeof count + count * sizeof(T);
}

// Through bytes, which are gone when this returns.
StepInput send(const StepInput& step) {
  std::vector<std::byte> bytes;
  write(bytes, step.spans);
  write(bytes, step.tokens);
  write(bytes, step.blocks);
  write(bytes, step.targets);
  write(bytes, step.block_copies);
  write(bytes, step.state_moves);
  StepInput received;
  const std::byte* next = bytes.data();
  read(next, received.spans);
  read(next, received.tokens);
  read(next, received.blocks);
  read(next, received.targets);
  read(next, received.block_copies);
  read(next, received.state_moves);
  return received;
}

constexpr std::int64_t kVocab = 1000;

// A model in a process of its own.
struct Rank {
  explicit Rank(bool recurrent)
      : fake({.vocab_size = kVocab, .recurrent = recurrent}, fake::small_options(8)), runner(fake.runtime, kVocab) {}

  fake::FakeRuntime fake;
  StepRunner runner;
};

std::vector<float> logits_of(const StepInput& step, Rank& rank) {
  std::int64_t num_rows = 0;
  for (const StepSpan& span : step.spans) num_rows += span.num_targets + span.num_logits;
  std::vector<float> logits(static_cast<std::size_t>(num_rows * kVocab));
  copy_to_host(rank.fake.runtime.context(), rank.runner.logits().data, std::span(logits));
  return logits;
}

}  // namespace

TEST(a_step_sent_as_bytes_gives_the_same_in_another_process) {
  for (const bool recurrent : {false, true}) {
    scheduling::Bench bench({.num_blocks = 128, .num_slots = 8, .recurrent = recurrent});
    Rank first(recurrent), second(recurrent);
    bench.add(text(150), 3);
    bench.add(text(70, 1), 1, 0, true);
    bench.add(text(150));
    bench.add(text(90, 2), 2);
    std::size_t num_copies = 0, num_moves = 0, num_targets = 0, num_drafts = 0;
    StepInput step;
    for (int count = 0; count < 40; ++count) {
      if (!recurrent && count % 3 == 1) bench.proposals.next[0] = {1, 1, 7};
      const StepPlan& plan = bench.schedule();
      make_step(plan, step);
      const StepInput received = send(step);
      const StepOutput& here = first.runner.execute(step);
      const StepOutput& there = second.runner.execute(received);
      CHECK(logits_of(step, first) == logits_of(received, second));
      CHECK_EQUAL(here.target_logprobs.size(), step.targets.size());
      CHECK_EQUAL(there.target_logprobs.size(), step.targets.size());
      for (std::size_t index = 0; index < step.targets.size(); ++index) {
        CHECK_EQUAL(here.target_logprobs[index].row, there.target_logprobs[index].row);
        CHECK_EQUAL(here.target_logprobs[index].logprob, there.target_logprobs[index].logprob);
      }
      num_copies += step.block_copies.size();
      num_moves += step.state_moves.size();
      num_targets += step.targets.size();
      for (const StepSpan& span : step.spans) num_drafts += static_cast<std::size_t>(span.num_draft);
      bench.complete(plan);
      // Later requests reuse blocks and snapshots.
      if (count == 20) bench.scheduler.finish(*bench.sequences[0]);
      if (count == 21) bench.add(text(150));
    }
    CHECK_EQUAL(num_targets, 69u);
    CHECK(num_copies > 0);
    CHECK_EQUAL(num_moves > 0, recurrent);
    CHECK_EQUAL(num_drafts > 0, !recurrent);
    bench.finish_all();
  }
}

TEST(a_step_holds_what_the_plan_says) {
  scheduling::Bench bench({.num_blocks = 16, .cache = false});
  bench.add(text(20));
  bench.step();
  bench.add(text(40, 1), 1, 0, true);
  bench.proposals.next[0] = {8, 9};
  const StepPlan& plan = bench.schedule();
  StepInput step;
  make_step(plan, step);
  CHECK_EQUAL(step.spans.size(), 2u);
  const StepSpan& decode = step.spans[0];
  CHECK(decode.start == 20 && decode.num_rows == 3 && decode.num_draft == 2 && decode.num_logits == 3);
  CHECK(!decode.chunked && decode.num_targets == 0 && decode.slot == bench.sequences[0]->slot);
  const StepSpan& chunk = step.spans[1];
  CHECK(chunk.start == 0 && chunk.num_rows == 40 && chunk.num_draft == 0 && chunk.num_logits == 1);
  CHECK(chunk.chunked && chunk.num_targets == 39);
  CHECK(std::vector<std::int32_t>(step.tokens.begin(), step.tokens.begin() + 3) == (std::vector{1, 8, 9}));
  CHECK(std::vector<std::int32_t>(step.tokens.begin() + 3, step.tokens.end()) == text(40, 1));
  const auto later = text(40, 1);
  CHECK(step.targets == std::vector<std::int32_t>(later.begin() + 1, later.end()));
  CHECK(std::vector<std::int32_t>(step.blocks.begin(), step.blocks.begin() + 2) == bench.sequences[0]->blocks);
  bench.complete(plan);
  bench.finish_all();
}
