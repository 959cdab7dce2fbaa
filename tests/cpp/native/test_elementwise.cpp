// Row-wise operations against plain double precision, at sizes that fill no vector.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/elementwise.h"

namespace {

using pocket::Context;
using pocket::Gate;
using pocket::NormShape;
using pocket::RotaryStyle;
using pocket::RotaryTable;
using pocket::SequenceRows;
using pocket::ThreadPool;

std::vector<float> random_floats(std::int64_t count, float scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> all(static_cast<std::size_t>(count));
  for (float& one : all) one = normal(random);
  return all;
}

bool same_bits(const float* a, const float* b, std::int64_t count) {
  return std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(float)) == 0;
}

double activation(Gate gate, double x) {
  switch (gate) {
    case Gate::kSilu:
      return x / (1.0 + std::exp(-x));
    case Gate::kGeluTanh:
      return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case Gate::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
  }
  return 0.0;
}

}  // namespace

TEST(rms_norm_equals_its_definition) {
  ThreadPool threads(2);
  Context context{threads};
  for (const std::int64_t columns : {1, 5, 16, 64, 65, 80, 127, 576, 640}) {
    for (const std::int64_t groups : {1, 3}) {
      const std::int64_t rows = 7, stride = groups * columns + 3;
      std::vector<float> x = random_floats(rows * stride, 2.0f, 1);
      const std::vector<float> weight = random_floats(columns, 1.0f, 2);
      std::vector<float> y(x.size(), 9.0f);
      const NormShape shape{rows, groups, columns, stride, stride, 1e-5f};
      pocket::rms_norm(context, shape, x.data(), weight.data(), y.data());
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t group = 0; group < groups; ++group) {
          const float* from = x.data() + row * stride + group * columns;
          const float* to = y.data() + row * stride + group * columns;
          double squares = 0.0;
          for (std::int64_t i = 0; i < columns; ++i) squares += double{from[i]} * double{from[i]};
          const double factor = 1.0 / std::sqrt(squares / static_cast<double>(columns) + 1e-5);
          for (std::int64_t i = 0; i < columns; ++i) {
            const double expected = from[i] * factor * double{weight[static_cast<std::size_t>(i)]};
            CHECK_CLOSE(to[i], expected, 4e-7 * std::abs(expected) + 1e-12);
          }
        }
        for (std::int64_t i = groups * columns; i < stride; ++i) {
          CHECK_EQUAL(y[static_cast<std::size_t>(row * stride + i)], 9.0f);
        }
      }
      std::vector<float> in_place = x;
      pocket::rms_norm(context, shape, in_place.data(), weight.data(), in_place.data());
      for (std::int64_t row = 0; row < rows; ++row) {
        CHECK(same_bits(in_place.data() + row * stride, y.data() + row * stride, groups * columns));
      }
    }
  }
}

TEST(rms_norm_rows_do_not_depend_on_the_batch) {
  ThreadPool threads(2);
  Context context{threads};
  const std::int64_t rows = 100, columns = 576;
  const std::vector<float> x = random_floats(rows * columns, 1.0f, 3);
  const std::vector<float> weight = random_floats(columns, 1.0f, 4);
  std::vector<float> all(x.size()), alone(x.size());
  pocket::rms_norm(context, {rows, 1, columns, columns, columns, 1e-6f}, x.data(), weight.data(), all.data());
  for (std::int64_t row = 0; row < rows; ++row) {
    pocket::rms_norm(context, {1, 1, columns, columns, columns, 1e-6f}, x.data() + row * columns, weight.data(),
                     alone.data() + row * columns);
  }
  CHECK(same_bits(all.data(), alone.data(), rows * columns));
}

TEST(gates_equal_their_definitions) {
  ThreadPool threads(2);
  Context context{threads};
  for (const Gate gate_kind : {Gate::kSilu, Gate::kGeluTanh, Gate::kSigmoid}) {
    for (const std::int64_t columns : {1, 15, 16, 33, 1536}) {
      const std::int64_t rows = 40, stride = columns + 2;
      std::vector<float> gate = random_floats(rows * stride, 4.0f, 5);
      const std::vector<float> up = random_floats(rows * stride, 1.0f, 6);
      const float extremes[] = {0.0f, -0.0f, 100.0f, -100.0f, 88.5f, -88.5f, 1e-30f, -20.0f, 1e20f, -1e20f};
      for (std::int64_t i = 0; i < 10 && i < columns; ++i) gate[static_cast<std::size_t>(i)] = extremes[i];
      std::vector<float> y(static_cast<std::size_t>(rows * columns));
      pocket::gated(context, gate_kind, rows, columns, gate.data(), up.data(), stride, y.data(), columns);
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t i = 0; i < columns; ++i) {
          const auto at = static_cast<std::size_t>(row * stride + i);
          const double expected = activation(gate_kind, gate[at]) * double{up[at]};
          CHECK_CLOSE(y[static_cast<std::size_t>(row * columns + i)], expected,
                      4e-6 * std::abs(expected) + 1e-7 * std::abs(up[at]));
        }
      }
      std::vector<float> alone(static_cast<std::size_t>(columns));
      pocket::gated(context, gate_kind, 1, columns, gate.data() + 3 * stride, up.data() + 3 * stride, stride,
                    alone.data(), columns);
      CHECK(same_bits(alone.data(), y.data() + 3 * columns, columns));
    }
  }
}

TEST(gates_keep_nan) {
  ThreadPool threads(1);
  Context context{threads};
  const float gate = std::numeric_limits<float>::quiet_NaN(), up = 1.0f;
  for (const Gate gate_kind : {Gate::kSilu, Gate::kGeluTanh, Gate::kSigmoid}) {
    float y = 0.0f;
    pocket::gated(context, gate_kind, 1, 1, &gate, &up, 1, &y, 1);
    CHECK(std::isnan(y));
  }
}

TEST(rotation_equals_its_definition) {
  ThreadPool threads(2);
  Context context{threads};
  for (const RotaryStyle style : {RotaryStyle::kHalves, RotaryStyle::kInterleaved}) {
    for (const std::int32_t pairs : {1, 4, 16, 23, 32}) {
      const std::int32_t head_dim = 2 * pairs + 6, heads = 3;
      std::vector<double> frequencies;
      for (std::int32_t i = 0; i < pairs; ++i) frequencies.push_back(std::pow(1e4, -static_cast<double>(i) / pairs));
      const double factor = 1.25;
      const RotaryTable table(frequencies, 900, factor);
      CHECK_EQUAL(table.rotary_dim(), 2 * pairs);
      const std::int64_t stride = heads * head_dim + 1;
      const SequenceRows sequences[] = {{0, 300, 500, {}, -1, false}, {300, 1, 7, {}, -1, false}};
      const std::vector<float> x = random_floats(301 * stride, 1.0f, 8);
      std::vector<float> y = x;
      pocket::rotate(context, table, style, sequences, heads, head_dim, y.data(), stride);
      for (std::int64_t row = 0; row < 301; ++row) {
        const auto position = static_cast<double>(row < 300 ? 500 + row : 7);
        for (std::int64_t head = 0; head < heads; ++head) {
          const float* from = x.data() + row * stride + head * head_dim;
          const float* to = y.data() + row * stride + head * head_dim;
          for (std::int32_t i = 0; i < pairs; ++i) {
            const double angle = position * frequencies[static_cast<std::size_t>(i)];
            const std::int32_t a = style == RotaryStyle::kHalves ? i : 2 * i;
            const std::int32_t b = style == RotaryStyle::kHalves ? i + pairs : 2 * i + 1;
            CHECK_CLOSE(to[a], factor * (from[a] * std::cos(angle) - from[b] * std::sin(angle)), 2e-6);
            CHECK_CLOSE(to[b], factor * (from[b] * std::cos(angle) + from[a] * std::sin(angle)), 2e-6);
          }
          CHECK(same_bits(from + 2 * pairs, to + 2 * pairs, head_dim - 2 * pairs));
        }
        CHECK_EQUAL(x[static_cast<std::size_t>((row + 1) * stride - 1)],
                    y[static_cast<std::size_t>((row + 1) * stride - 1)]);
      }
      std::vector<float> alone(x.begin() + 123 * stride, x.begin() + 124 * stride);
      const SequenceRows one[] = {{0, 1, 623, {}, -1, false}};
      pocket::rotate(context, table, style, one, heads, head_dim, alone.data(), stride);
      CHECK(same_bits(alone.data(), y.data() + 123 * stride, stride));
    }
  }
}

TEST(scaling_and_adding) {
  ThreadPool threads(2);
  Context context{threads};
  for (const std::int64_t count : {1, 17, 100000}) {
    const std::vector<float> x = random_floats(count, 1.0f, 9);
    std::vector<float> y = random_floats(count, 1.0f, 10);
    const std::vector<float> before = y;
    pocket::scale_rows(context, count, 3.5f, y.data());
    for (std::size_t i = 0; i < y.size(); ++i) CHECK_EQUAL(y[i], before[i] * 3.5f);
    y = before;
    pocket::add_rows(context, count, x.data(), y.data());
    for (std::size_t i = 0; i < y.size(); ++i) CHECK_EQUAL(y[i], before[i] + x[i]);
  }
}
