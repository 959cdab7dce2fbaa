#include "engine/session.h"

#include <algorithm>

#include "check.h"
#include "core/error.h"
#include "fake_model.h"

using namespace pocket;

namespace {

std::vector<std::int32_t> text(std::int64_t num_tokens, std::int32_t step = 7) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(num_tokens));
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    tokens[index] = static_cast<std::int32_t>((index * index + static_cast<std::size_t>(step) * index + 3) % 61);
  }
  return tokens;
}

std::vector<float> copy(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

bool equal(std::span<const float> logits, const std::vector<float>& expected) {
  return std::ranges::equal(logits, expected);
}

struct Bench {
  explicit Bench(bool recurrent = false)
      : fake({.recurrent = recurrent}, fake::small_options(2, 600)), session(fake.runtime) {
    fake.model->on_forward = [this](const Step& step) { num_rows += static_cast<std::int64_t>(step.tokens.size()); };
  }
  // In one go, from nothing.
  std::vector<float> fresh(const std::vector<std::int32_t>& tokens) {
    Bench other(fake.runtime.states() != nullptr);
    return copy(other.session.prefill(tokens));
  }

  fake::FakeRuntime fake;
  Session session;
  std::int64_t num_rows = 0;
};

}  // namespace

TEST(steps_give_what_one_prefill_gives) {
  Bench bench;
  const auto tokens = text(40);
  CHECK(equal(bench.session.prefill(std::span(tokens).first(30)), bench.fresh(text(30))));
  for (std::size_t index = 30; index < 40; ++index) {
    const auto logits = copy(bench.session.decode_step(tokens[index]));
    CHECK(logits == bench.fresh({tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(index) + 1}));
  }
  CHECK_EQUAL(bench.session.position(), 40);
}

TEST(a_long_prompt_is_computed_in_pieces) {
  for (const bool recurrent : {false, true}) {
    Bench bench(recurrent);
    std::vector<std::int32_t> lengths;
    bench.fake.model->on_forward = [&](const Step& step) {
      lengths.push_back(static_cast<std::int32_t>(step.tokens.size()));
      CHECK(step.sequences[0].chunked);
    };
    bench.session.prefill(text(590));
    CHECK((lengths == std::vector<std::int32_t>{512, 78}));
  }
}

TEST(prefill_reuses_the_common_beginning) {
  Bench bench;
  bench.session.prefill(text(50));
  bench.num_rows = 0;
  const auto longer = text(70);
  CHECK(equal(bench.session.prefill(longer), bench.fresh(longer)));
  CHECK_EQUAL(bench.num_rows, 20);
  CHECK_EQUAL(bench.session.num_reused_tokens(), 50);
  auto other = text(60);
  other[41] = other[41] == 1 ? 2 : 1;
  bench.num_rows = 0;
  CHECK(equal(bench.session.prefill(other), bench.fresh(other)));
  CHECK_EQUAL(bench.num_rows, 19);
  CHECK_EQUAL(bench.session.num_reused_tokens(), 41);
  bench.num_rows = 0;
  CHECK(equal(bench.session.prefill(other), bench.fresh(other)));
  CHECK_EQUAL(bench.num_rows, 0);
  const auto shorter = std::vector(other.begin(), other.begin() + 10);
  CHECK(equal(bench.session.prefill(shorter), bench.fresh(shorter)));
  CHECK_EQUAL(bench.session.position(), 10);
}

TEST(recurrent_sessions_reuse_only_what_they_continue) {
  Bench bench(true);
  bench.session.prefill(text(128));
  bench.num_rows = 0;
  CHECK(equal(bench.session.prefill(text(150)), bench.fresh(text(150))));  // from a chunk's border: the same bits
  CHECK_EQUAL(bench.num_rows, 22);
  bench.num_rows = 0;
  CHECK(equal(bench.session.prefill(text(140)), bench.fresh(text(140))));
  CHECK_EQUAL(bench.num_rows, 140);
  std::vector<bool> chunked;
  bench.fake.model->on_forward = [&](const Step& step) { chunked.push_back(step.sequences[0].chunked); };
  bench.session.prefill(text(250));  // one by one up to 192, then in chunks
  CHECK((chunked == std::vector<bool>{false, true}));
  CHECK_EQUAL(bench.session.num_reused_tokens(), 140);
}

TEST(verify_gives_the_logits_of_every_token_and_truncate_takes_back) {
  Bench bench;
  const auto tokens = text(40);
  bench.session.prefill(std::span(tokens).first(30));
  const auto logits = copy(bench.session.verify_step(std::span(tokens).subspan(30, 8)));
  CHECK_EQUAL(logits.size(), 8u * 61u);
  for (std::size_t row = 0; row < 8; ++row) {
    const auto expected = bench.fresh({tokens.begin(), tokens.begin() + 31 + static_cast<std::ptrdiff_t>(row)});
    CHECK(std::equal(expected.begin(), expected.end(), logits.begin() + static_cast<std::ptrdiff_t>(row) * 61));
  }
  bench.session.truncate(5);
  CHECK_EQUAL(bench.session.position(), 33);
  auto other = std::vector(tokens.begin(), tokens.begin() + 33);
  other.push_back(11);
  CHECK(equal(bench.session.decode_step(11), bench.fresh(other)));
  CHECK_THROWS(Error, bench.session.truncate(35));
  bench.session.truncate(34);
  CHECK_EQUAL(bench.session.position(), 0);
  CHECK(equal(bench.session.prefill(tokens), bench.fresh(tokens)));
}

TEST(recurrent_sessions_verify_one_by_one_and_do_not_truncate) {
  Bench bench(true);
  bench.session.prefill(text(70));
  const auto more = text(75);
  const auto logits = copy(bench.session.verify_step(std::span(more).subspan(70)));
  Bench other(true);
  other.session.prefill(text(70));
  for (std::size_t row = 0; row < 5; ++row) {
    const auto expected = copy(other.session.decode_step(more[70 + row]));
    CHECK(std::equal(expected.begin(), expected.end(), logits.begin() + static_cast<std::ptrdiff_t>(row) * 61));
  }
  CHECK_THROWS(Error, bench.session.truncate(1));
  CHECK_EQUAL(bench.session.position(), 75);
}

TEST(bad_arguments_change_nothing) {
  Bench bench;
  bench.session.prefill(text(10));
  CHECK_THROWS(Error, bench.session.decode_step(61));
  CHECK_THROWS(Error, bench.session.decode_step(-1));
  CHECK_THROWS(Error, bench.session.prefill({}));
  CHECK_THROWS(Error, bench.session.verify_step(text(591)));
  CHECK_THROWS(Error, bench.session.truncate(-1));
  CHECK_EQUAL(bench.session.position(), 10);
  bench.session.prefill(text(600));
  CHECK_THROWS(Error, bench.session.decode_step(1));
}

TEST(a_model_that_throws_leaves_an_empty_session) {
  Bench bench(true);
  bench.session.prefill(text(10));
  bench.fake.model->on_forward = [](const Step&) { throw std::runtime_error("broken"); };
  CHECK_THROWS(std::runtime_error, bench.session.decode_step(1));
  CHECK_EQUAL(bench.session.position(), 0);
  bench.fake.model->on_forward = nullptr;
  CHECK(equal(bench.session.prefill(text(10)), bench.fresh(text(10))));
}

TEST(runtime_sizes_are_checked) {
  const auto refuses = [](const RuntimeOptions& options, const char* param) {
    try {
      fake::FakeRuntime made({.max_positions = 256}, options);
    } catch (const Error& error) {
      CHECK_EQUAL(error.param(), param);
      return;
    }
    CHECK(false);
  };
  refuses(fake::small_options(2, 257), "max_model_len");
  refuses(fake::small_options(0, 256), "max_batch_size");
  auto options = fake::small_options(2, 256);
  options.kv_cache_bytes = 1;
  refuses(options, "backend_options.kv_cache_bytes");
  options.kv_cache_bytes = fake::bytes_of_blocks(15);
  refuses(options, "max_model_len");
  options.max_model_len = 0;
  fake::FakeRuntime small({.max_positions = 256}, options);
  CHECK_EQUAL(small.runtime.max_model_len(), 240);
  options.kv_cache_bytes = 0;
  fake::FakeRuntime wide({.max_positions = 256}, options);
  CHECK_EQUAL(wide.runtime.max_model_len(), 256);
  CHECK_EQUAL(wide.runtime.kv().shape().num_blocks, 32);
}
