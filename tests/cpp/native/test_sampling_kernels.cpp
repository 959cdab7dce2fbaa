// The CPU's passes over a row of logits against naive ones, at sizes that fill no vector and no block.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/cpu/sampling/passes.h"

namespace {

using pocket::cpu::TokenLogit;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const std::vector<std::int64_t>& sizes() {
  static const std::vector<std::int64_t> all = {1, 2, 15, 16, 17, 63, 320, 1024, 1025, 5000, 49153};
  return all;
}

// On a grid, so that equal logits are many.
std::vector<float> random_row(std::int64_t count, unsigned seed, float scale = 3.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> row(static_cast<std::size_t>(count));
  for (float& logit : row) logit = std::round(normal(random) * 64.0f) / 64.0f;
  return row;
}

std::vector<TokenLogit> sorted(const std::vector<float>& row) {
  std::vector<TokenLogit> all;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (!std::isnan(row[i])) all.push_back({static_cast<std::int32_t>(i), row[i]});
  }
  std::stable_sort(all.begin(), all.end(), [](const TokenLogit& a, const TokenLogit& b) { return a.logit > b.logit; });
  return all;
}

void check_equal(const std::vector<TokenLogit>& a, const std::vector<TokenLogit>& b) {
  CHECK_EQUAL(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK_EQUAL(a[i].id, b[i].id);
    CHECK_EQUAL(a[i].logit, b[i].logit);
  }
}

double naive_log_sum(const std::vector<float>& row, double scale) {
  double largest = -kInfinity, sum = 0.0;
  for (const float x : row) {
    if (!std::isnan(x)) largest = std::max(largest, scale * x);
  }
  for (const float x : row) {
    if (!std::isnan(x)) sum += std::exp(scale * x - largest);
  }
  return largest + std::log(sum);
}

}  // namespace

TEST(argmax_takes_the_first_of_equals) {
  for (const std::int64_t size : sizes()) {
    for (unsigned seed = 0; seed < 5; ++seed) {
      std::vector<float> row = random_row(size, seed);
      if (seed == 3 && size > 2) row[static_cast<std::size_t>(size / 2)] = kNan;
      if (seed == 4) row.back() = kInfinity;
      CHECK_EQUAL(pocket::cpu::argmax(row), sorted(row).front().id);
    }
  }
  CHECK_EQUAL(pocket::cpu::argmax(std::vector<float>(40, -kInfinity)), 0);
  CHECK_EQUAL(pocket::cpu::argmax(std::vector<float>(40, kNan)), 0);
  std::vector<float> one(100, kNan);
  one[70] = -5.0f;
  CHECK_EQUAL(pocket::cpu::argmax(one), 70);
}

TEST(log_sum_exp_equals_the_naive_one) {
  for (const std::int64_t size : sizes()) {
    for (const float scale : {1.0f, 0.25f, 7.0f}) {
      std::vector<float> row = random_row(size, 21);
      if (size > 20) {
        row[3] = -kInfinity;
        row[7] = kNan;
      }
      CHECK_CLOSE(pocket::cpu::log_sum_exp(row, scale), naive_log_sum(row, double{scale}), 2e-6);
    }
  }
  CHECK_EQUAL(pocket::cpu::log_sum_exp(std::vector<float>(40, -kInfinity)), -kInfinity);
  CHECK_EQUAL(pocket::cpu::log_sum_exp(std::vector<float>{1.0f, kInfinity}), kInfinity);
}

TEST(top_logits_equal_sorting) {
  for (const std::int64_t size : sizes()) {
    std::vector<float> row = random_row(size, 23);
    if (size > 20) row[5] = kNan;
    const std::vector<TokenLogit> all = sorted(row);
    for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{20}, size / 2, size + 5}) {
      std::vector<TokenLogit> out;
      pocket::cpu::top_logits(row, count, out);
      const auto wanted = std::min<std::int64_t>(count, static_cast<std::int64_t>(all.size()));
      check_equal(out, {all.begin(), all.begin() + wanted});
    }
  }
}

TEST(candidates_are_those_at_least_the_threshold) {
  for (const std::int64_t size : sizes()) {
    std::vector<float> row = random_row(size, 24);
    if (size > 20) row[5] = kNan;
    for (const float threshold : {-100.0f, 0.0f, 1.5f, 100.0f}) {
      std::vector<TokenLogit> expected, out;
      for (std::size_t i = 0; i < row.size(); ++i) {
        if (row[i] >= threshold) expected.push_back({static_cast<std::int32_t>(i), row[i]});
      }
      CHECK(pocket::cpu::collect_at_least(row, threshold, 0, out));
      check_equal(out, expected);
      const auto found = static_cast<std::int64_t>(expected.size());
      if (found == 0) continue;
      CHECK(pocket::cpu::collect_at_least(row, threshold, found, out));
      check_equal(out, expected);
      if (found == 1) continue;
      CHECK(!pocket::cpu::collect_at_least(row, threshold, found - 1, out));
      check_equal(out, {expected.begin(), expected.end() - 1});
    }
  }
}

TEST(draws_follow_the_distribution) {
  for (const std::int64_t size : {std::int64_t{1}, std::int64_t{40}, std::int64_t{3000}}) {
    std::vector<float> row = random_row(size, 25, 2.0f);
    if (size > 20) {
      row[2] = -kInfinity;
      row[9] = kNan;
    }
    const float scale = 0.8f;
    const double log_sum = naive_log_sum(row, double{scale});
    double cumulative = 0.0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!(row[i] > -kInfinity)) continue;
      const double probability = std::exp(double{scale} * row[i] - log_sum);
      // The middle of each id's interval, when rounding cannot move it into a neighbour's.
      if (probability > 1e-5) {
        CHECK_EQUAL(pocket::cpu::draw(row, scale, cumulative + probability / 2), static_cast<std::int32_t>(i));
      }
      cumulative += probability;
    }
  }
  std::vector<float> row(2000, -kInfinity);
  row[1500] = 1.0f;
  for (const double uniform : {0.0, 0.5, 0x1.fffffffffffffp-1}) {
    CHECK_EQUAL(pocket::cpu::draw(row, 1.0f, uniform), 1500);
  }
  CHECK_EQUAL(pocket::cpu::draw(std::vector<float>(50, -kInfinity), 1.0f, 0.5), 0);
}

TEST(masks_leave_the_allowed) {
  for (const std::int64_t size : sizes()) {
    std::mt19937 random(26);
    const std::int64_t num_words = std::max<std::int64_t>(1, size / 32);  // ids past the last word are not allowed
    std::vector<std::uint32_t> words(static_cast<std::size_t>(num_words));
    for (std::uint32_t& word : words) word = random();
    const std::vector<float> row = random_row(size, 27);
    std::vector<float> masked = row;
    pocket::cpu::mask_disallowed(words, masked);
    for (std::int64_t id = 0; id < size; ++id) {
      const bool allowed = id / 32 < num_words && ((words[static_cast<std::size_t>(id / 32)] >> (id % 32)) & 1u) != 0;
      CHECK_EQUAL(masked[static_cast<std::size_t>(id)], allowed ? row[static_cast<std::size_t>(id)] : -kInfinity);
    }
  }
}

TEST(penalties_and_biases_change_the_named_logits) {
  std::vector<float> row = {2.0f, -2.0f, 1.0f, 0.5f, 4.0f};
  const pocket::Penalties penalties{2.0f, 0.25f, 0.5f};
  const std::vector<pocket::SeenToken> seen = {{0, 0}, {1, 2}, {4, 1}, {99, 1}, {-1, 1}};
  pocket::cpu::penalize(penalties, seen, row);
  CHECK((row == std::vector<float>{1.0f, -5.0f, 1.0f, 0.5f, 1.25f}));
  const std::vector<std::pair<std::int32_t, float>> bias = {{3, 1.5f}, {0, -100.0f}, {5, 1.0f}, {-2, 1.0f}};
  pocket::cpu::add_bias(bias, row);
  CHECK((row == std::vector<float>{-99.0f, -5.0f, 1.0f, 2.0f, 1.25f}));
  const std::vector<std::int32_t> ids = {2, 7};
  pocket::cpu::forbid(ids, row);
  CHECK_EQUAL(row[2], -kInfinity);
  CHECK_EQUAL(row[3], 2.0f);
}
