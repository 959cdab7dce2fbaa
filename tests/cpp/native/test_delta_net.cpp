// Gated DeltaNet on every device against the reference; one-by-one and chunked forms; the same bits whatever the batch
// and the threads.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/error.h"
#include "device_tensor.h"

namespace {

using bench::DeviceBench;
using pocket::DeltaNetInputs;
using pocket::DeltaNetShape;
using pocket::DeltaNetStates;
using pocket::DeltaNetWeights;
using pocket::SequenceRows;

std::vector<float> random_floats(std::mt19937& random, std::int64_t count, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> all(static_cast<std::size_t>(count));
  for (float& one : all) one = normal(random);
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - double{b[i]});
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

// Sequences of random inputs, each with a state slot; run() computes any rows of them in one call.
class Fixture {
 public:
  Fixture(std::string_view device, const DeltaNetShape& shape, std::int64_t num_sequences, std::int64_t length,
          float decay_scale = 1.0f, int num_threads = 1)
      : device(device, num_threads),
        shape_(shape),
        length_(length),
        slots(this->device.context(), pocket::delta_net_slot_bytes(this->device.context(), shape),
              static_cast<std::int32_t>(num_sequences)),
        states(this->device.context(), slots, shape) {
    std::mt19937 random(5);
    const std::int64_t rows = num_sequences * length;
    conv_ = random_floats(random, shape.conv_channels() * shape.kernel_size, 0.5f);
    decay_ = random_floats(random, shape.num_value_heads);
    for (float& one : decay_) one = -decay_scale * std::exp(one);
    dt_bias_ = random_floats(random, shape.num_value_heads, 0.5f);
    norm_ = random_floats(random, shape.value_dim);
    mixed_ = random_floats(random, rows * shape.conv_channels());
    z_ = random_floats(random, rows * value_width());
    alpha_ = random_floats(random, rows * shape.num_value_heads);
    beta_ = random_floats(random, rows * shape.num_value_heads);
    out.assign(static_cast<std::size_t>(rows * value_width()), -1.0f);
  }

  std::int64_t value_width() const { return std::int64_t{shape_.num_value_heads} * shape_.value_dim; }

  struct Part {
    std::int64_t sequence, from, count;
    bool chunked;
  };

  void run(const std::vector<Part>& parts) {
    const std::int64_t gap = 3;
    std::int64_t num_rows = 0;
    for (const Part& part : parts) num_rows += part.count;
    const auto gather = [&](const std::vector<float>& all, std::int64_t width) {
      std::vector<float> rows(static_cast<std::size_t>(num_rows * (width + gap)));
      float* to = rows.data();
      for (const Part& part : parts) {
        for (std::int64_t row = 0; row < part.count; ++row, to += width + gap) {
          std::memcpy(to, all.data() + (part.sequence * length_ + part.from + row) * width,
                      static_cast<std::size_t>(width) * sizeof(float));
        }
      }
      return rows;
    };
    auto mixed = device.input(gather(mixed_, shape_.conv_channels()));
    auto z = device.input(gather(z_, value_width()));
    auto alpha = device.input(gather(alpha_, shape_.num_value_heads));
    auto beta = device.input(gather(beta_, shape_.num_value_heads));
    auto conv = device.input(conv_), decay = device.input(decay_), dt_bias = device.input(dt_bias_);
    auto norm = device.input(norm_);
    std::vector<SequenceRows> sequences;
    std::int32_t first_row = 0;
    for (const Part& part : parts) {
      SequenceRows one;
      one.first_row = first_row;
      one.num_rows = static_cast<std::int32_t>(part.count);
      one.position = part.from;
      one.state_slot = static_cast<std::int32_t>(part.sequence);
      one.chunked = part.chunked;
      sequences.push_back(one);
      first_row += one.num_rows;
    }
    const DeltaNetInputs inputs{mixed, z, alpha, beta, shape_.conv_channels() + gap, value_width() + gap,
                                shape_.num_value_heads + gap, shape_.num_value_heads + gap};
    const DeltaNetWeights weights{conv, decay, dt_bias, norm, 1e-6f};
    const std::int64_t out_stride = value_width() + 1;
    auto written = device.output(std::vector<float>(static_cast<std::size_t>(num_rows * out_stride), 5.0f));
    const pocket::SequenceTable table(device.context(), sequences);
    pocket::delta_net(device.context(), states, 1, weights, table, inputs, written, out_stride);
    for (const auto* each : {&mixed, &z, &alpha, &beta, &conv, &decay, &dt_bias, &norm}) CHECK(each->unchanged());
    const std::vector<float> result = written.values();
    const float* from = result.data();
    for (const Part& part : parts) {
      for (std::int64_t row = 0; row < part.count; ++row, from += out_stride) {
        std::memcpy(out.data() + (part.sequence * length_ + part.from + row) * value_width(), from,
                    static_cast<std::size_t>(value_width()) * sizeof(float));
        CHECK_EQUAL(from[value_width()], 5.0f);
      }
    }
  }

  // As the device keeps it.
  std::vector<std::byte> state(std::int32_t slot) {
    std::vector<std::byte> bytes(slots.slot_bytes());
    pocket::copy_to_host(device.context(), static_cast<const std::byte*>(states.slot(slot)), std::span(bytes));
    return bytes;
  }
  void set_state(std::int32_t slot, const std::vector<std::byte>& bytes) {
    pocket::copy_from_host(device.context(), std::span(bytes), states.slot(slot));
  }

  DeviceBench device;
  DeltaNetShape shape_;
  std::int64_t length_;
  std::vector<float> conv_, decay_, dt_bias_, norm_, mixed_, z_, alpha_, beta_;

  pocket::RecurrentStates slots;
  DeltaNetStates states;
  std::vector<float> out;
};

DeltaNetShape shape_of(std::int32_t key_heads, std::int32_t value_heads, std::int32_t key_dim, std::int32_t value_dim,
                       bool tiled = false, std::int32_t kernel_size = 4) {
  return {2, key_heads, value_heads, key_dim, value_dim, kernel_size, tiled};
}

const std::vector<DeltaNetShape>& shapes() {
  static const std::vector<DeltaNetShape> all = {
      shape_of(2, 4, 16, 16), shape_of(2, 4, 16, 16, true), shape_of(1, 2, 128, 128), shape_of(2, 2, 20, 33),
      shape_of(1, 3, 8, 80, true), shape_of(3, 3, 64, 48, false, 3),
  };
  return all;
}

}  // namespace

TEST(one_by_one_equals_reference) {
  bench::on_each_device([](const std::string& name) {
    for (const DeltaNetShape& shape : shapes()) {
      Fixture fast(name, shape, 1, 40), slow("reference", shape, 1, 40);
      fast.run({{0, 0, 33, false}});
      for (std::int64_t row = 33; row < 40; ++row) fast.run({{0, row, 1, false}});
      slow.run({{0, 0, 40, false}});
      CHECK_CLOSE(largest_difference(fast.out, slow.out), 0.0, 2e-5);
    }
  });
}

TEST(chunked_prompts_equal_the_slow_reference) {
  bench::on_each_device([](const std::string& name) {
    for (const DeltaNetShape& shape : shapes()) {
      // Strong decay makes the upper triangle's exponents large, weak decay keeps long memories.
      for (const float decay_scale : {0.01f, 1.0f, 60.0f}) {
        Fixture fast(name, shape, 1, 152, decay_scale), slow("reference", shape, 1, 152, decay_scale);
        fast.run({{0, 0, 64, true}});
        fast.run({{0, 64, 86, true}});
        fast.run({{0, 150, 2, false}});  // from the state that the chunks left
        slow.run({{0, 0, 152, false}});
        CHECK_CLOSE(largest_difference(fast.out, slow.out), 0.0, 5e-5);
      }
    }
  });
}

TEST(rows_have_the_same_bits_in_any_batch) {
  bench::on_each_device([](const std::string& name) {
    for (const DeltaNetShape& shape : shapes()) {
      const std::int64_t n = 140;
      Fixture whole(name, shape, 3, n), apart(name, shape, 3, n, 1.0f, 2);
      for (std::int64_t sequence = 0; sequence < 3; ++sequence) {
        whole.run({{sequence, 0, 128, true}});
        whole.run({{sequence, 128, 12, false}});
      }
      apart.run({{1, 0, 64, true}, {0, 0, 128, true}});
      apart.run({{2, 0, 128, true}, {0, 128, 1, false}, {1, 64, 64, true}});
      apart.run({{0, 129, 5, false}, {1, 128, 12, false}, {2, 128, 1, false}});
      apart.run({{2, 129, 11, false}, {0, 134, 6, false}});
      CHECK(same_bits(whole.out, apart.out));
      for (std::int32_t slot = 0; slot < 3; ++slot) CHECK(whole.state(slot) == apart.state(slot));
    }
  });
}

TEST(a_partial_last_chunk_gives_its_rows_the_same_bits) {
  bench::on_each_device([](const std::string& name) {
    for (const DeltaNetShape& shape : shapes()) {
      Fixture whole(name, shape, 1, 128);
      whole.run({{0, 0, 128, true}});
      for (const std::int64_t count : {1, 2, 7, 16, 33, 50, 63}) {
        Fixture part(name, shape, 1, 128);
        part.run({{0, 0, 64 + count, true}});
        std::vector<float> expected(whole.out.begin(), whole.out.begin() + (64 + count) * whole.value_width());
        part.out.resize(expected.size());
        CHECK(same_bits(part.out, expected));
      }
    }
  });
}

TEST(a_snapshot_continues_with_the_same_bits) {
  bench::on_each_device([](const std::string& name) {
    Fixture fixture(name, shape_of(2, 4, 16, 16), 1, 80);
    fixture.run({{0, 0, 64, true}});
    const std::vector<std::byte> snapshot = fixture.state(0);
    fixture.run({{0, 64, 16, false}});
    const std::vector<float> first = fixture.out;
    fixture.slots.clear(fixture.device.context(), 0);
    for (const std::byte one : fixture.state(0)) CHECK(one == std::byte{0});
    fixture.set_state(0, snapshot);
    fixture.run({{0, 64, 16, false}});
    CHECK(same_bits(first, fixture.out));
  });
}

TEST(impossible_shapes_are_refused) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name);
    const DeltaNetShape shape = shape_of(2, 4, 16, 16), uneven = shape_of(2, 3, 16, 16);
    const std::size_t num_bytes = pocket::delta_net_slot_bytes(device.context(), shape);
    CHECK_THROWS(pocket::Error, pocket::RecurrentStates(device.context(), num_bytes, 0));
    CHECK_THROWS(pocket::Error, pocket::RecurrentStates(device.context(), 0, 1));
    pocket::RecurrentStates slots(device.context(), num_bytes, 1);
    pocket::RecurrentStates uneven_slots(device.context(), pocket::delta_net_slot_bytes(device.context(), uneven), 1);
    CHECK_THROWS(pocket::Error, DeltaNetStates(device.context(), uneven_slots, uneven));
    CHECK_THROWS(pocket::Error, DeltaNetStates(device.context(), uneven_slots, shape));
    CHECK_EQUAL(DeltaNetStates(device.context(), slots, shape).slot(0), slots.slot(0));
  });
}
