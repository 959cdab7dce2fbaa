// Row-wise operations of every device against plain double precision, at sizes that fill no vector.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "device_tensor.h"

namespace {

using bench::DeviceBench;
using pocket::Gate;
using pocket::NormShape;
using pocket::RotaryStyle;
using pocket::RotaryTable;
using pocket::SequenceRows;
using pocket::SequenceTable;

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

std::vector<float> rows_of(const std::vector<float>& all, std::int64_t first, std::int64_t count, std::int64_t stride) {
  return {all.begin() + first * stride, all.begin() + (first + count) * stride};
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
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name, 2);
    for (const std::int64_t columns : {1, 5, 16, 64, 65, 80, 127, 576, 640}) {
      for (const std::int64_t groups : {1, 3}) {
        const std::int64_t rows = 7, stride = groups * columns + 3;
        const std::vector<float> values = random_floats(rows * stride, 2.0f, 1);
        const std::vector<float> weights = random_floats(columns, 1.0f, 2);
        auto x = device.input(values);
        auto weight = device.input(weights);
        auto out = device.output(std::vector<float>(values.size(), 9.0f));
        const NormShape shape{rows, groups, columns, stride, stride, 1e-5f};
        pocket::rms_norm(device.context(), shape, x, weight, out);
        CHECK(x.unchanged() && weight.unchanged());
        const std::vector<float> y = out.values();
        for (std::int64_t row = 0; row < rows; ++row) {
          for (std::int64_t group = 0; group < groups; ++group) {
            const float* from = values.data() + row * stride + group * columns;
            const float* to = y.data() + row * stride + group * columns;
            double squares = 0.0;
            for (std::int64_t i = 0; i < columns; ++i) squares += double{from[i]} * double{from[i]};
            const double factor = 1.0 / std::sqrt(squares / static_cast<double>(columns) + 1e-5);
            for (std::int64_t i = 0; i < columns; ++i) {
              const double expected = from[i] * factor * double{weights[static_cast<std::size_t>(i)]};
              CHECK_CLOSE(to[i], expected, 4e-7 * std::abs(expected) + 1e-12);
            }
          }
          for (std::int64_t i = groups * columns; i < stride; ++i) {
            CHECK_EQUAL(y[static_cast<std::size_t>(row * stride + i)], 9.0f);
          }
        }
        auto in_place = device.output(values);
        pocket::rms_norm(device.context(), shape, in_place, weight, in_place);
        const std::vector<float> same = in_place.values();
        for (std::int64_t row = 0; row < rows; ++row) {
          CHECK(same_bits(same.data() + row * stride, y.data() + row * stride, groups * columns));
        }
      }
    }
  });
}

TEST(rms_norm_rows_do_not_depend_on_the_batch) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name, 2);
    const std::int64_t rows = 100, columns = 576;
    auto x = device.input(random_floats(rows * columns, 1.0f, 3));
    auto weight = device.input(random_floats(columns, 1.0f, 4));
    auto all = device.output(std::vector<float>(rows * columns));
    auto alone = device.output(std::vector<float>(rows * columns));
    pocket::rms_norm(device.context(), {rows, 1, columns, columns, columns, 1e-6f}, x, weight, all);
    for (std::int64_t row = 0; row < rows; ++row) {
      pocket::rms_norm(device.context(), {1, 1, columns, columns, columns, 1e-6f}, x + row * columns, weight,
                       alone + row * columns);
    }
    CHECK(same_bits(all.values().data(), alone.values().data(), rows * columns));
  });
}

TEST(gates_equal_their_definitions) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name, 2);
    for (const Gate gate_kind : {Gate::kSilu, Gate::kGeluTanh, Gate::kSigmoid}) {
      for (const std::int64_t columns : {1, 15, 16, 33, 1536}) {
        const std::int64_t rows = 40, stride = columns + 2;
        std::vector<float> gates = random_floats(rows * stride, 4.0f, 5);
        const std::vector<float> ups = random_floats(rows * stride, 1.0f, 6);
        const float extremes[] = {0.0f, -0.0f, 100.0f, -100.0f, 88.5f, -88.5f, 1e-30f, -20.0f, 1e20f, -1e20f};
        for (std::int64_t i = 0; i < 10 && i < columns; ++i) gates[static_cast<std::size_t>(i)] = extremes[i];
        auto gate = device.input(gates);
        auto up = device.input(ups);
        auto out = device.output(std::vector<float>(static_cast<std::size_t>(rows * columns)));
        pocket::gated(device.context(), gate_kind, rows, columns, gate, up, stride, out, columns);
        CHECK(gate.unchanged() && up.unchanged());
        const std::vector<float> y = out.values();
        for (std::int64_t row = 0; row < rows; ++row) {
          for (std::int64_t i = 0; i < columns; ++i) {
            const auto at = static_cast<std::size_t>(row * stride + i);
            const double expected = activation(gate_kind, gates[at]) * double{ups[at]};
            CHECK_CLOSE(y[static_cast<std::size_t>(row * columns + i)], expected,
                        4e-6 * std::abs(expected) + 1e-7 * std::abs(ups[at]));
          }
        }
        auto alone = device.output(std::vector<float>(static_cast<std::size_t>(columns)));
        pocket::gated(device.context(), gate_kind, 1, columns, gate + 3 * stride, up + 3 * stride, stride, alone,
                      columns);
        CHECK(same_bits(alone.values().data(), y.data() + 3 * columns, columns));
      }
    }
  });
}

TEST(gates_keep_what_is_not_a_number) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name);
    auto gate = device.input(std::vector<float>{std::numeric_limits<float>::quiet_NaN()});
    auto up = device.input(std::vector<float>{1.0f});
    for (const Gate gate_kind : {Gate::kSilu, Gate::kGeluTanh, Gate::kSigmoid}) {
      auto y = device.output(std::vector<float>{0.0f});
      pocket::gated(device.context(), gate_kind, 1, 1, gate, up, 1, y, 1);
      CHECK(std::isnan(y.values()[0]));
    }
  });
}

TEST(rotation_equals_its_definition) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name, 2);
    for (const RotaryStyle style : {RotaryStyle::kHalves, RotaryStyle::kInterleaved}) {
      for (const std::int32_t pairs : {1, 4, 16, 23, 32}) {
        const std::int32_t head_dim = 2 * pairs + 6, heads = 3;
        std::vector<double> frequencies;
        for (std::int32_t i = 0; i < pairs; ++i) frequencies.push_back(std::pow(1e4, -static_cast<double>(i) / pairs));
        const double factor = 1.25;
        auto angles = device.output(std::vector<float>(900 * 2 * static_cast<std::size_t>(pairs)));
        pocket::fill_rotary_table(device.context(), frequencies, factor, 900, angles);
        CHECK_CLOSE(angles.values()[0], factor, 1e-7);  // the cosine of 0
        const RotaryTable table{angles, 2 * pairs};
        const std::int64_t stride = heads * head_dim + 1;
        const SequenceRows rows[] = {{0, 300, 500, {}, -1, false}, {300, 1, 7, {}, -1, false}};
        const SequenceTable sequences(device.context(), rows);
        const std::vector<float> x = random_floats(301 * stride, 1.0f, 8);
        auto turned = device.output(x);
        pocket::rotate(device.context(), table, style, sequences, heads, head_dim, turned, stride);
        const std::vector<float> y = turned.values();
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
        auto alone = device.output(rows_of(x, 123, 1, stride));
        const SequenceRows one[] = {{0, 1, 623, {}, -1, false}};
        pocket::rotate(device.context(), table, style, SequenceTable(device.context(), one), heads, head_dim, alone,
                       stride);
        CHECK(same_bits(alone.values().data(), y.data() + 123 * stride, stride));
      }
    }
  });
}

TEST(scaling_and_adding_equal_plain_loops) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name, 2);
    for (const std::int64_t count : {1, 17, 100000}) {
      const std::vector<float> x = random_floats(count, 1.0f, 9);
      const std::vector<float> before = random_floats(count, 1.0f, 10);
      auto added = device.input(x);
      auto scaled = device.output(before);
      pocket::scale_rows(device.context(), count, 3.5f, scaled);
      auto sum = device.output(before);
      pocket::add_rows(device.context(), count, added, sum);
      CHECK(added.unchanged());
      const std::vector<float> products = scaled.values(), sums = sum.values();
      for (std::size_t i = 0; i < before.size(); ++i) {
        CHECK_EQUAL(products[i], before[i] * 3.5f);
        CHECK_EQUAL(sums[i], before[i] + x[i]);
      }
    }
  });
}

TEST(kept_rows_move_to_the_front) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name);
    const std::int64_t width = 5, stride = 7;
    const std::vector<float> x = random_floats(12 * stride, 1.0f, 11);
    for (const std::vector<std::int32_t>& rows :
         std::vector<std::vector<std::int32_t>>{{0}, {11}, {0, 1, 5}, {3, 4, 5, 6, 11}}) {
      auto wanted = device.input(rows);
      auto kept = device.output(x);
      pocket::keep_rows(device.context(), wanted, std::ssize(rows), width, stride, kept);
      const std::vector<float> y = kept.values();
      for (std::size_t i = 0; i < rows.size(); ++i) {
        CHECK(same_bits(y.data() + static_cast<std::int64_t>(i) * stride, x.data() + rows[i] * stride, width));
      }
    }
  });
}
