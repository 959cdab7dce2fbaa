// Attention over the paged cache on every device: against the reference, and the same bits in any batch, any chunks and
// on any threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "core/error.h"
#include "device_tensor.h"

namespace {

using pocket::AttentionShape;
using bench::DeviceBench;
using pocket::KvCache;
using pocket::KvShape;
using pocket::KvType;
using pocket::SequenceRows;

struct Sizes {
  std::int32_t num_heads, num_kv_heads, head_dim, window;
  KvType type;
  std::int64_t num_positions;
};

std::vector<float> random_floats(std::mt19937& random, std::int64_t count, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> all(static_cast<std::size_t>(count));
  for (float& one : all) one = normal(random);
  return all;
}

// One sequence with its own blocks in a shared cache, its rows' queries, keys and values, and what attention gave.
struct Sequence {
  std::vector<std::int32_t> blocks;
  std::vector<float> q, k, v, out;
  std::int64_t length = 0;
};

class Fixture {
 public:
  Fixture(std::string_view device, const Sizes& sizes, std::vector<std::int64_t> lengths, int num_threads = 1)
      : sizes_(sizes),
        device_(device, num_threads),
        cache_(device_.context(), shape_for(device_.context(), sizes, lengths)),
        random_(7) {
    std::vector<std::int32_t> blocks(static_cast<std::size_t>(cache_.shape().num_blocks));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), random_);
    std::size_t next = 0;
    std::mt19937 values(7);  // the same for every size of blocks
    for (const std::int64_t length : lengths) {
      Sequence sequence;
      sequence.length = length;
      for (std::int64_t p = 0; p < length; p += block_size()) sequence.blocks.push_back(blocks[next++]);
      sequence.q = random_floats(values, length * q_width());
      sequence.k = random_floats(values, length * kv_width());
      sequence.v = random_floats(values, length * kv_width());
      sequence.out.assign(static_cast<std::size_t>(length * q_width()), -1.0f);
      sequences.push_back(std::move(sequence));
    }
  }

  static KvShape shape_for(const pocket::Context& context, const Sizes& sizes,
                           const std::vector<std::int64_t>& lengths) {
    const std::int32_t block_size = pocket::kv_block_size(context);
    std::int64_t num_blocks = 3;
    for (const std::int64_t length : lengths) num_blocks += (length + block_size - 1) / block_size;
    return {2, sizes.num_kv_heads, sizes.head_dim, static_cast<std::int32_t>(num_blocks), block_size, sizes.type};
  }

  std::int64_t block_size() const { return cache_.shape().block_size; }
  std::int64_t q_width() const { return std::int64_t{sizes_.num_heads} * sizes_.head_dim; }
  std::int64_t kv_width() const { return std::int64_t{sizes_.num_kv_heads} * sizes_.head_dim; }
  AttentionShape attention_shape() const {
    return {sizes_.num_heads, 1.0f / std::sqrt(static_cast<float>(sizes_.head_dim)), sizes_.window};
  }

  // Every position of every block holds keys and values that are not numbers.
  void fill_with_garbage() {
    const std::int64_t num_positions = block_size() * cache_.shape().num_blocks;
    std::vector<std::int32_t> blocks(static_cast<std::size_t>(cache_.shape().num_blocks));
    std::iota(blocks.begin(), blocks.end(), 0);
    const SequenceRows all[] = {{0, static_cast<std::int32_t>(num_positions), 0, blocks, -1, false}};
    auto garbage = device_.input(std::vector<float>(static_cast<std::size_t>(num_positions * kv_width()),
                                                    std::numeric_limits<float>::quiet_NaN()));
    pocket::store_kv(device_.context(), cache_, 1, {device_.context(), all}, garbage, garbage, kv_width());
  }

  // Computes rows [from, from + count) of several sequences in one call.
  struct Part {
    std::size_t sequence;
    std::int64_t from, count;
  };
  void run(const std::vector<Part>& parts) {
    std::vector<SequenceRows> rows;
    std::vector<float> q, k, v;
    std::int64_t num_rows = 0;
    const std::int64_t gap = 5;  // strides are wider than the rows
    const std::int64_t q_stride = q_width() + gap, kv_stride = kv_width() + gap;
    for (const Part& part : parts) {
      const Sequence& sequence = sequences[part.sequence];
      SequenceRows one;
      one.first_row = static_cast<std::int32_t>(num_rows);
      one.num_rows = static_cast<std::int32_t>(part.count);
      one.position = part.from;
      one.blocks = sequence.blocks;
      rows.push_back(one);
      num_rows += part.count;
      q.resize(static_cast<std::size_t>(num_rows * q_stride));
      k.resize(static_cast<std::size_t>(num_rows * kv_stride));
      v.resize(static_cast<std::size_t>(num_rows * kv_stride));
      for (std::int64_t row = 0; row < part.count; ++row) {
        const std::int64_t to = one.first_row + row, at = part.from + row;
        std::memcpy(q.data() + to * q_stride, sequence.q.data() + at * q_width(), bytes(q_width()));
        std::memcpy(k.data() + to * kv_stride, sequence.k.data() + at * kv_width(), bytes(kv_width()));
        std::memcpy(v.data() + to * kv_stride, sequence.v.data() + at * kv_width(), bytes(kv_width()));
      }
    }
    auto keys = device_.input(k), values = device_.input(v), queries = device_.input(q);
    auto result = device_.output(std::vector<float>(static_cast<std::size_t>(num_rows * q_stride), 77.0f));
    const pocket::SequenceTable table(device_.context(), rows);
    pocket::store_kv(device_.context(), cache_, 1, table, keys, values, kv_stride);
    pocket::attend(device_.context(), cache_, 1, attention_shape(), table, queries, q_stride, result, q_stride);
    CHECK(keys.unchanged() && values.unchanged() && queries.unchanged());
    const std::vector<float> out = result.values();
    for (std::int64_t row = 0; row < num_rows; ++row) {
      for (std::int64_t i = 0; i < gap; ++i) {
        CHECK_EQUAL(out[static_cast<std::size_t>(row * q_stride + q_width() + i)], 77.0f);
      }
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (std::int64_t row = 0; row < parts[i].count; ++row) {
        std::memcpy(sequences[parts[i].sequence].out.data() + (parts[i].from + row) * q_width(),
                    out.data() + (rows[i].first_row + row) * q_stride, bytes(q_width()));
      }
    }
  }

  KvCache& cache() { return cache_; }
  pocket::Context& context() { return device_.context(); }

  std::vector<Sequence> sequences;

 private:
  static std::size_t bytes(std::int64_t num_floats) { return static_cast<std::size_t>(num_floats) * sizeof(float); }

  Sizes sizes_;
  DeviceBench device_;
  KvCache cache_;
  std::mt19937 random_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Head counts, dims that fill no vector, windows shorter and longer than a block, spans and segments.
const std::vector<Sizes>& all_sizes() {
  static const std::vector<Sizes> sizes = {
      {9, 3, 64, 0, KvType::kF16, 150},   {6, 2, 64, 0, KvType::kQ8_0, 90},  {4, 1, 256, 40, KvType::kF16, 90},
      {4, 1, 256, 40, KvType::kQ8_0, 90}, {1, 1, 16, 0, KvType::kF16, 300},   {4, 2, 20, 7, KvType::kF16, 100},
      {4, 2, 20, 7, KvType::kQ8_0, 100},  {3, 1, 80, 270, KvType::kF16, 330}, {6, 6, 33, 1, KvType::kF16, 70},
      {50, 1, 16, 64, KvType::kF16, 90}, {4, 1, 128, 16, KvType::kQ8_0, 280}, {9, 3, 64, 0, KvType::kF32, 150},
      {4, 1, 256, 40, KvType::kF32, 90},  {4, 2, 20, 7, KvType::kF32, 100},   {3, 1, 80, 270, KvType::kF32, 330},
      {50, 1, 16, 64, KvType::kF32, 90},
  };
  return sizes;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - double{b[i]});
    if (!(difference <= largest)) largest = difference;  // NaN stays
  }
  return largest;
}

}  // namespace

TEST(attention_equals_the_slow_reference) {
  bench::on_each_device([](const std::string& name) {
    for (const Sizes& sizes : all_sizes()) {
      Fixture fast(name, sizes, {sizes.num_positions});
      Fixture slow("reference", sizes, {sizes.num_positions});
      fast.run({{0, 0, sizes.num_positions}});
      slow.run({{0, 0, sizes.num_positions}});
      CHECK_CLOSE(largest_difference(fast.sequences[0].out, slow.sequences[0].out), 0.0, 5e-6);
    }
  });
}

TEST(quantised_cache_is_near_the_exact_one) {
  bench::on_each_device([](const std::string& name) {
    for (const Sizes& sizes : all_sizes()) {
      if (sizes.type != KvType::kQ8_0) continue;
      Sizes exact_sizes = sizes;
      exact_sizes.type = KvType::kF16;
      Fixture quantised(name, sizes, {sizes.num_positions});
      Fixture exact(name, exact_sizes, {sizes.num_positions});
      quantised.run({{0, 0, sizes.num_positions}});
      exact.run({{0, 0, sizes.num_positions}});
      CHECK_CLOSE(largest_difference(quantised.sequences[0].out, exact.sequences[0].out), 0.0, 0.05);
    }
  });
}

TEST(a_row_has_the_same_bits_alone_in_chunks_in_batches_and_on_threads) {
  bench::on_each_device([](const std::string& name) {
    for (const Sizes& sizes : all_sizes()) {
      const std::int64_t n = sizes.num_positions;
      const std::vector<std::int64_t> lengths = {n, n / 2 + 1, 17};
      Fixture whole(name, sizes, lengths);
      whole.run({{0, 0, n}});
      whole.run({{1, 0, lengths[1]}});
      whole.run({{2, 0, lengths[2]}});

      Fixture alone(name, sizes, lengths);
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        for (std::int64_t row = 0; row < lengths[i]; ++row) alone.run({{i, row, 1}});
      }
      Fixture chunks(name, sizes, lengths, 2);
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        std::int64_t step = 1;
        for (std::int64_t row = 0; row < lengths[i]; row += step, step = step * 2 + 1) {
          if (row != 0) step = std::min(step, lengths[i] - row);
          chunks.run({{i, row, std::min(step, lengths[i] - row)}});
        }
      }
      // Sequence 0 advances one by one while the others are prefilled in the same calls.
      Fixture batches(name, sizes, lengths, 2);
      batches.run({{0, 0, n - 3}});
      batches.run({{1, 0, lengths[1] - 2}, {0, n - 3, 1}, {2, 0, 5}});
      batches.run({{0, n - 2, 1}, {2, 5, 12}, {1, lengths[1] - 2, 1}});
      batches.run({{1, lengths[1] - 1, 1}, {0, n - 1, 1}});
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        CHECK(same_bits(whole.sequences[i].out, alone.sequences[i].out));
        CHECK(same_bits(whole.sequences[i].out, chunks.sequences[i].out));
        CHECK(same_bits(whole.sequences[i].out, batches.sequences[i].out));
      }
    }
  });
}

TEST(what_unused_slots_hold_does_not_matter) {
  bench::on_each_device([](const std::string& name) {
    for (const Sizes& sizes : all_sizes()) {
      const std::int64_t n = sizes.num_positions;
      Fixture clean(name, sizes, {n});
      Fixture dirty(name, sizes, {n}, 2);
      dirty.fill_with_garbage();
      clean.run({{0, 0, n}});
      std::int64_t done = 0;
      for (const std::int64_t count : {std::int64_t{1}, std::int64_t{30}, n - 33, std::int64_t{1}, std::int64_t{1}}) {
        dirty.run({{0, done, count}});
        done += count;
      }
      CHECK_EQUAL(done, n);
      CHECK(same_bits(clean.sequences[0].out, dirty.sequences[0].out));
    }
  });
}

// Long sequences of few heads are divided by segments when there are threads to spare.
TEST(segments_computed_apart_give_the_same_bits) {
  bench::on_each_device([](const std::string& name) {
    for (const KvType type : {KvType::kF16, KvType::kQ8_0, KvType::kF32}) {
      for (const std::int32_t window : {0, 600}) {
        const Sizes sizes{4, 1, 32, window, type, 1100};
        Fixture one(name, sizes, {sizes.num_positions}, 1);
        Fixture two(name, sizes, {sizes.num_positions}, 2);
        for (Fixture* fixture : {&one, &two}) {
          fixture->run({{0, 0, 1000}});
          fixture->run({{0, 1000, 98}});
          fixture->run({{0, 1098, 1}});
          fixture->run({{0, 1099, 1}});
        }
        CHECK(same_bits(one.sequences[0].out, two.sequences[0].out));
        Fixture slow("reference", sizes, {sizes.num_positions});
        slow.run({{0, 0, sizes.num_positions}});
        CHECK_CLOSE(largest_difference(one.sequences[0].out, slow.sequences[0].out), 0.0, 5e-6);
      }
    }
  });
}

TEST(sharp_and_flat_scores_equal_the_reference) {
  bench::on_each_device([](const std::string& name) {
    const Sizes sizes{2, 1, 32, 0, KvType::kF16, 200};
    for (const float factor : {0.0f, 100.0f, 3000.0f}) {
      Fixture fixture(name, sizes, {sizes.num_positions});
      for (float& q : fixture.sequences[0].q) q *= factor;
      Fixture slow("reference", sizes, {sizes.num_positions});
      slow.sequences[0].q = fixture.sequences[0].q;
      fixture.run({{0, 0, sizes.num_positions}});
      slow.run({{0, 0, sizes.num_positions}});
      CHECK_CLOSE(largest_difference(fixture.sequences[0].out, slow.sequences[0].out), 0.0,
                  factor > 1000.0f ? 2e-3 : 1e-4);
    }
  });
}

TEST(values_too_large_for_half_precision_saturate) {
  bench::on_each_device([](const std::string& name) {
    const Sizes sizes{1, 1, 16, 0, KvType::kF16, 3};
    Fixture fixture(name, sizes, {3});
    fixture.sequences[0].v[0] = 1e6f;
    fixture.sequences[0].v[1] = -1e6f;
    fixture.run({{0, 0, 3}});
    CHECK_EQUAL(fixture.sequences[0].out[0], 65504.0f);
    CHECK_EQUAL(fixture.sequences[0].out[1], -65504.0f);
    for (const float y : fixture.sequences[0].out) CHECK(std::isfinite(y));
  });
}

TEST(a_cache_of_floats_keeps_keys_and_values_as_they_are) {
  bench::on_each_device([](const std::string& name) {
    const Sizes sizes{1, 1, 20, 0, KvType::kF32, 19};
    Fixture fixture(name, sizes, {19});
    Sequence& sequence = fixture.sequences[0];
    sequence.k[0] = 1e-30f;
    sequence.v[0] = 1e6f;
    sequence.v[1] = INFINITY;  // saturates: a weight of 0 times it would be NaN
    sequence.v[2] = -INFINITY;
    fixture.run({{0, 0, 19}});
    constexpr float kLargest = std::numeric_limits<float>::max();
    const auto block_size = static_cast<std::int32_t>(fixture.block_size());
    for (std::int32_t position = 0; position < 19; ++position) {
      const std::int32_t block = sequence.blocks[static_cast<std::size_t>(position / block_size)];
      std::vector<float> key(20), value(20);
      pocket::load_kv(fixture.context(), fixture.cache(), 1, block, position % block_size, key, value);
      for (std::size_t dim = 0; dim < 20; ++dim) {
        const std::size_t at = static_cast<std::size_t>(position) * 20 + dim;
        CHECK_EQUAL(key[dim], sequence.k[at]);
        CHECK_EQUAL(value[dim], std::clamp(sequence.v[at], -kLargest, kLargest));
      }
    }
    CHECK_EQUAL(sequence.out[0], 1e6f);
  });
}

// A product below the smallest float rounds to a zero of its sign, which a row's neighbours must not change: here some
// rows see zeros of high weight and negative values of low weight, and those after them in the tile positive values.
TEST(values_that_underflow_give_the_same_bits_in_any_tile) {
  bench::on_each_device([](const std::string& name) {
    struct Steps {
      std::int64_t zeros, negatives, all;  // positions up to which
    };
    for (const Steps& steps : {Steps{1, 40, 60}, Steps{256, 512, 530}}) {  // inside a span, and between segments
      const Sizes sizes{4, 1, 20, 0, KvType::kF32, steps.all};
      Fixture whole(name, sizes, {steps.all});
      Fixture alone(name, sizes, {steps.all});
      for (Fixture* fixture : {&whole, &alone}) {
        Sequence& sequence = fixture->sequences[0];
        std::fill(sequence.q.begin(), sequence.q.end(), 1.0f);
        for (std::int64_t position = 0; position < steps.all; ++position) {
          constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
          const bool is_zero = position < steps.zeros;
          const float value = is_zero ? -0.0f : position < steps.negatives ? -kSmallest : kSmallest;
          std::fill_n(sequence.k.begin() + position * sizes.head_dim, sizes.head_dim, is_zero ? 4.0f : 0.0f);
          std::fill_n(sequence.v.begin() + position * sizes.head_dim, sizes.head_dim, value);
        }
      }
      whole.run({{0, 0, steps.all}});
      for (std::int64_t row = 0; row < steps.all; ++row) alone.run({{0, row, 1}});
      CHECK(same_bits(whole.sequences[0].out, alone.sequences[0].out));
    }
  });
}

TEST(copied_blocks_serve_another_sequence) {
  bench::on_each_device([](const std::string& name) {
    for (const KvType type : {KvType::kF16, KvType::kQ8_0, KvType::kF32}) {
      const Sizes sizes{4, 2, 32, 0, type, 24};
      Fixture fixture(name, sizes, {24, 24});
      fixture.sequences[1].q = fixture.sequences[0].q;
      fixture.run({{0, 0, 24}});
      for (std::size_t i = 0; i < fixture.sequences[0].blocks.size(); ++i) {
        fixture.cache().copy_block(fixture.context(), fixture.sequences[0].blocks[i],
                                   fixture.sequences[1].blocks[i]);
      }
      // Only the last row is new, with the same key and value.
      fixture.sequences[1].k = fixture.sequences[0].k;
      fixture.sequences[1].v = fixture.sequences[0].v;
      fixture.run({{1, 23, 1}});
      const auto last = [&](std::size_t i) {
        return std::vector<float>(fixture.sequences[i].out.end() - fixture.q_width(), fixture.sequences[i].out.end());
      };
      CHECK(same_bits(last(0), last(1)));
    }
  });
}

TEST(caches_take_the_bytes_that_their_type_says) {
  DeviceBench device("cpu");
  pocket::Context& context = device.context();
  const KvShape shape{30, 3, 64, 10, pocket::kv_block_size(context), KvType::kF16};
  CHECK_EQUAL(pocket::kv_block_bytes(context, shape), std::size_t{30 * 3 * 64 * 16 * 2 * 2});
  CHECK_EQUAL(KvCache(context, shape).num_bytes(), std::size_t{10} * pocket::kv_block_bytes(context, shape));
  KvShape quantised = shape;
  quantised.type = KvType::kQ8_0;
  CHECK_EQUAL(pocket::kv_block_bytes(context, quantised), std::size_t{30 * 3 * (64 * 16 * 2 + 2 * 16 * 4)});
  KvShape exact = shape;
  exact.type = KvType::kF32;
  CHECK_EQUAL(pocket::kv_block_bytes(context, exact), std::size_t{30 * 3 * 64 * 16 * 2 * 4});
}

TEST(impossible_caches_are_refused) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name);
    KvShape shape{30, 3, 64, 0, pocket::kv_block_size(device.context()), KvType::kF16};
    CHECK_THROWS(pocket::Error, KvCache(device.context(), shape));
    shape.num_blocks = 2;
    shape.block_size *= 2;
    CHECK_THROWS(pocket::Error, KvCache(device.context(), shape));
  });
}

TEST(a_cache_of_another_device_is_refused) {
  DeviceBench cpu("cpu"), reference("reference");
  KvCache cache(cpu.context(), {1, 1, 16, 2, pocket::kv_block_size(cpu.context()), KvType::kF16});
  try {
    cache.copy_block(reference.context(), 0, 1);
  } catch (const pocket::Error& error) {
    CHECK(error.kind() == pocket::ErrorKind::kEngine);
    CHECK(std::string(error.what()).find("\"cpu\"") != std::string::npos);
    CHECK(std::string(error.what()).find("\"reference\"") != std::string::npos);
    return;
  }
  CHECK(false);
}
