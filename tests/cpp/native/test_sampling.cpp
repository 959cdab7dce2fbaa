// Tokens and log probabilities of every device against sorting the whole row.
#include <cmath>
#include <limits>
#include <map>

#include "device_tensor.h"
#include "engine/random_numbers.h"
#include "naive_engine.h"

using namespace pocket;

namespace {

using bench::DeviceBench;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> row_of(std::uint64_t seed, std::size_t size) {
  std::vector<float> row(size);
  for (std::size_t id = 0; id < size; ++id) row[id] = static_cast<float>(uniform(seed, id) * 16.0 - 8.0);
  return row;
}

std::vector<SamplingParams> rules() {
  std::vector<SamplingParams> all;
  for (const float temperature : {0.0f, 0.3f, 1.0f, 5.0f}) {
    for (const std::int32_t top_k : {0, 1, 7, 40, 5000}) {
      for (const float top_p : {1.0f, 0.999f, 0.6f, 0.01f}) {
        for (const float min_p : {0.0f, 0.05f, 1.0f}) {
          SamplingParams params;
          params.temperature = temperature;
          params.top_k = top_k;
          params.top_p = top_p;
          params.min_p = min_p;
          all.push_back(params);
        }
      }
    }
  }
  return all;
}

SamplingRow row_with(const SamplingParams& params, double number, std::int64_t row = 0) {
  SamplingRow sampled;
  sampled.row = row;
  sampled.temperature = params.temperature;
  sampled.top_p = params.top_p;
  sampled.min_p = params.min_p;
  sampled.top_k = params.top_k;
  sampled.uniform = number;
  return sampled;
}

// Tokens for rows of logits that lie `gap` floats apart, the gap larger than any logit.
std::vector<std::int32_t> sample_all(DeviceBench& device, const std::vector<std::vector<float>>& rows,
                                     const std::vector<SamplingRow>& sampled) {
  constexpr std::int64_t kGap = 3;
  std::vector<float> all;
  for (const std::vector<float>& row : rows) {
    all.insert(all.end(), row.begin(), row.end());
    all.insert(all.end(), kGap, 1e30f);
  }
  auto logits = device.input(all);
  const auto size = std::ssize(rows[0]);
  std::vector<std::int32_t> tokens(sampled.size(), -1);
  sample(device.context(), {logits, size + kGap, size}, sampled, tokens);
  CHECK(logits.unchanged());
  return tokens;
}

}  // namespace

TEST(tokens_agree_with_sorting_everything) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name, 2);
    for (const std::size_t size : {5u, 100u, 2500u}) {
      std::vector<std::vector<float>> rows;
      std::vector<SamplingRow> sampled;
      std::vector<std::int32_t> expected;
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        auto row = row_of(seed, size);
        if (seed == 1) row[3] = row[2] = 9.0f;  // equal ones
        if (seed == 2) std::fill(row.begin() + 2, row.end(), -kInfinity);
        for (const SamplingParams& params : rules()) {
          for (const double number : {0.0, 0.1234, 0.5, 0.9, 0.999999}) {
            sampled.push_back(row_with(params, number, static_cast<std::int64_t>(seed)));
            expected.push_back(naive::pick(row, params, number));
          }
        }
        rows.push_back(std::move(row));
      }
      CHECK(sample_all(device, rows, sampled) == expected);
    }
  });
}

TEST(a_wide_nucleus_is_drawn_from_as_if_it_were_sorted) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name, 2);
    for (const float scale : {0.0f, 0.01f, 0.5f}) {
      auto row = row_of(5, 20000);
      for (float& logit : row) logit = std::round(logit * scale * 64.0f) / 64.0f;  // with equal ones
      std::vector<SamplingRow> sampled;
      std::vector<std::int32_t> expected;
      for (const float top_p : {0.9f, 0.5f, 0.9999f}) {
        for (const float min_p : {0.0f, 0.4f}) {
          SamplingParams params;
          params.temperature = 1.5f;
          params.top_p = top_p;
          params.min_p = min_p;
          for (const double number : {0.0, 0.001, 0.3, 0.77, 0.9999}) {
            sampled.push_back(row_with(params, number));
            expected.push_back(naive::pick(row, params, number));
          }
        }
      }
      CHECK(sample_all(device, {row}, sampled) == expected);
    }
  });
}

TEST(rows_without_numbers_give_some_token) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name);
    for (const float value : {kInfinity, -kInfinity, kNan}) {
      std::vector<SamplingRow> sampled;
      for (const SamplingParams& params : rules()) sampled.push_back(row_with(params, 0.5));
      for (const std::int32_t token : sample_all(device, {std::vector<float>(600, value)}, sampled)) {
        CHECK(token >= 0 && token < 600);
      }
    }
  });
}

TEST(a_logit_that_is_not_a_number_is_never_chosen) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name);
    std::vector<float> row(50, -2.0f);
    row[7] = kNan;
    row[9] = 1.0f;
    std::vector<SamplingRow> sampled;
    for (const SamplingParams& params : rules()) {
      for (const double number : {0.0, 0.2, 0.5, 0.9}) sampled.push_back(row_with(params, number));
    }
    for (const std::int32_t token : sample_all(device, {row}, sampled)) CHECK(token != 7);
  });
}

TEST(draws_follow_the_probabilities) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name, 2);
    const std::vector<float> row{std::log(0.5f), std::log(0.3f), std::log(0.2f), -kInfinity};
    SamplingParams params;
    params.temperature = 1.0f;
    std::vector<SamplingRow> sampled;
    for (std::uint64_t index = 0; index < 20000; ++index) sampled.push_back(row_with(params, uniform(1, index)));
    std::map<std::int32_t, int> counts;
    for (const std::int32_t token : sample_all(device, {row}, sampled)) ++counts[token];
    CHECK_CLOSE(counts[0] / 20000.0, 0.5, 0.015);
    CHECK_CLOSE(counts[1] / 20000.0, 0.3, 0.015);
    CHECK_CLOSE(counts[2] / 20000.0, 0.2, 0.015);
    CHECK_EQUAL(counts[3], 0);
  });
}

TEST(adjustments_are_made_in_their_order) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name);
    const std::vector<float> row{2.0f, -2.0f, 1.0f, 0.5f, 4.0f};
    const std::vector<SeenToken> seen{{0, 0}, {1, 2}, {4, 1}, {99, 1}, {-1, 1}};
    const std::vector<std::pair<std::int32_t, float>> bias{{3, 1.5f}, {0, -100.0f}, {5, 1.0f}, {-2, 1.0f}};
    const std::vector<std::int32_t> forbidden{3, 7};
    const std::vector<std::uint32_t> allowed{0b10110};
    std::vector<SamplingRow> sampled(5);
    for (SamplingRow& each : sampled) each.penalties = {2.0f, 0.25f, 0.5f};
    CHECK_EQUAL(sample_all(device, {row}, {sampled[0]})[0], 4);  // nothing has been seen
    for (std::size_t i = 1; i < 5; ++i) sampled[i].seen = seen;    // {1, -5, 1, 0.5, 1.25}
    for (std::size_t i = 2; i < 5; ++i) sampled[i].bias = bias;    // {-99, -5, 1, 2, 1.25}
    for (std::size_t i = 3; i < 5; ++i) sampled[i].forbidden = forbidden;  // without 3
    sampled[4].allowed = allowed;                                          // of 1, 2 and 4
    CHECK((sample_all(device, {row}, sampled) == std::vector<std::int32_t>{4, 4, 3, 4, 4}));
    const std::vector<std::uint32_t> others{0b00110};
    sampled[4].allowed = others;
    CHECK_EQUAL(sample_all(device, {row}, {sampled[4]})[0], 2);
  });
}

TEST(ids_past_the_last_word_of_a_mask_are_not_allowed) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name);
    for (const std::size_t size : {33u, 64u, 200u}) {
      std::vector<float> row(size, 0.0f);
      row.back() = 5.0f;
      row[20] = 1.0f;
      const std::vector<std::uint32_t> allowed{0xFFFFFFFFu};
      SamplingRow sampled;
      sampled.allowed = allowed;
      CHECK_EQUAL(sample_all(device, {row}, {sampled})[0], 20);
    }
  });
}

TEST(log_probabilities_equal_the_naive_ones) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name, 2);
    for (const std::size_t size : {1u, 17u, 1025u, 5000u}) {
      auto row = row_of(9, size);
      for (float& logit : row) logit = std::round(logit * 16.0f) / 16.0f;  // with equal ones
      if (size > 20) {
        row[3] = -kInfinity;
        row[7] = kNan;
      }
      double total = 0.0;
      std::vector<std::pair<std::int32_t, float>> sorted;
      for (std::size_t id = 0; id < size; ++id) {
        if (std::isnan(row[id])) continue;
        total += std::exp(double{row[id]});
        sorted.emplace_back(static_cast<std::int32_t>(id), row[id]);
      }
      std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
      std::vector<float> rows = row;
      rows.insert(rows.end(), row.begin(), row.end());
      auto logits = device.input(rows);
      const auto width = static_cast<std::int64_t>(size);
      const std::vector<LogprobRow> wanted{{0, 0, 0}, {1, static_cast<std::int32_t>(size) - 1, 5}, {0, 0, 1}};
      std::vector<TokenLogprob> results(3);
      log_probabilities(device.context(), {logits, width, width}, wanted, results);
      CHECK(logits.unchanged());
      for (std::size_t i = 0; i < 3; ++i) {
        const double expected = double{row[static_cast<std::size_t>(wanted[i].token)]} - std::log(total);
        CHECK_CLOSE(results[i].logprob, expected, 1e-5);
        CHECK_EQUAL(results[i].top.size(), std::min(sorted.size(), static_cast<std::size_t>(wanted[i].num_top)));
        for (std::size_t rank = 0; rank < results[i].top.size(); ++rank) {
          CHECK_EQUAL(results[i].top[rank].first, sorted[rank].first);
          CHECK_CLOSE(results[i].top[rank].second, double{sorted[rank].second} - std::log(total), 1e-5);
        }
      }
    }
  });
}
