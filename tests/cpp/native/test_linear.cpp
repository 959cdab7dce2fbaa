// Products with every weight type against the reference, and the promise that an element's bits depend on nothing but
// its own two rows.
#include "kernels/linear.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "core/error.h"
#include "core/half.h"
#include "kernels/cpu/linear/matrix.h"
#include "kernels/cpu/simd/dispatch.h"

namespace {

using namespace pocket;

constexpr DType kBlockTypes[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,   DType::kQ5_1,   DType::kQ8_0,
                                 DType::kQ2_K, DType::kQ3_K, DType::kQ4_K,   DType::kQ5_K,   DType::kQ6_K,
                                 DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4};
constexpr DType kAllTypes[] = {DType::kQ4_0,   DType::kQ4_1,   DType::kQ5_0,  DType::kQ5_1, DType::kQ8_0, DType::kQ2_K,
                               DType::kQ3_K,   DType::kQ4_K,   DType::kQ5_K,  DType::kQ6_K, DType::kIQ4_NL,
                               DType::kIQ4_XS, DType::kMXFP4,  DType::kF32,   DType::kF16,  DType::kBF16,
                               DType::kF8E4M3};

std::vector<float> random_floats(std::size_t count, unsigned seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// Where the fp16 scales of a block are; every other byte may have any value.
std::vector<int> half_offsets(DType dtype) {
  switch (dtype) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K: return {0, 2};
    case DType::kQ2_K: return {80, 82};
    case DType::kQ3_K: return {108};
    case DType::kQ6_K: return {208};
    case DType::kMXFP4: return {};
    default: return {0};
  }
}

std::vector<std::byte> random_rows(DType dtype, std::int64_t num_rows, std::int64_t num_columns, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<std::byte> data(static_cast<std::size_t>(num_rows) * row_bytes(dtype, num_columns));
  const auto put = [&](std::size_t at, auto value) { std::memcpy(data.data() + at, &value, sizeof value); };
  if (dtype == DType::kF32) {
    for (std::size_t at = 0; at < data.size(); at += 4) put(at, normal(generator));
    return data;
  }
  if (dtype == DType::kF16 || dtype == DType::kBF16) {
    for (std::size_t at = 0; at < data.size(); at += 2) {
      const std::uint16_t half = float_to_half(normal(generator));
      put(at, dtype == DType::kF16 ? half : static_cast<std::uint16_t>(0x3C00u | (half & 0x83FFu)));
    }
    return data;
  }
  for (std::byte& byte : data) byte = static_cast<std::byte>(generator());
  if (dtype == DType::kF8E4M3) {
    for (std::byte& byte : data) byte &= static_cast<std::byte>(0xBF);  // below 2, and no NaN
    return data;
  }
  const auto block_bytes = static_cast<std::size_t>(info(dtype).block_bytes);
  for (std::size_t block = 0; block < data.size(); block += block_bytes) {
    if (dtype == DType::kMXFP4) put(block, static_cast<std::uint8_t>(120 + generator() % 8));
    for (const int offset : half_offsets(dtype)) {
      put(block + static_cast<std::size_t>(offset), float_to_half(normal(generator)));
    }
  }
  return data;
}

struct Case {
  std::vector<std::vector<std::byte>> data;
  std::vector<MatrixPart> parts;
  std::int64_t num_rows = 0;
  std::int64_t num_columns = 0;

  void add(DType dtype, std::int64_t rows, unsigned seed) {
    data.push_back(random_rows(dtype, rows, num_columns, seed));
    MatrixPart part;
    part.dtype = dtype;
    part.data = data.back().data();
    part.num_rows = rows;
    parts.push_back(part);
    num_rows += rows;
  }
};

struct Product {
  const LinearKernels* kernels = &kernels_in_use<LinearKernelsOf>();
  int num_threads = 1;
  Activation activation = Activation::kInt8;
  const float* bias = nullptr;
  Store store = Store::kAssign;
  std::int64_t padding = 0;  // floats between the rows of y and of x

  std::vector<float> operator()(const Case& weights, const std::vector<float>& x, std::int64_t num_rows,
                                float fill = 0.0f) const {
    ThreadPool pool(num_threads);
    Context context{pool};
    const auto matrix = pack_matrix(context, weights.parts, weights.num_columns, activation);
    CHECK_EQUAL(matrix->num_rows(), weights.num_rows);
    CHECK_EQUAL(matrix->num_columns(), weights.num_columns);
    ActivationRows::State state;
    assign_with(*kernels, context, x.data(), num_rows, weights.num_columns, weights.num_columns, activation, state);
    const std::int64_t stride = weights.num_rows + padding;
    std::vector<float> y(static_cast<std::size_t>(num_rows * stride), fill);
    multiply_with(*kernels, context, static_cast<const PackedMatrix&>(*matrix), state, bias, y.data(), stride, store);
    return y;
  }
};

// Largest error relative to the norm of what the errors of single terms add up to.
double relative_error(const Case& weights, const std::vector<float>& x, std::int64_t num_rows,
                      const std::vector<float>& y) {
  std::vector<float> expected(static_cast<std::size_t>(num_rows * weights.num_rows));
  multiply_reference(weights.parts, weights.num_columns, x.data(), num_rows, expected.data());
  double norm = 0.0;
  for (const float value : expected) norm += static_cast<double>(value) * value;
  norm = std::sqrt(norm / static_cast<double>(expected.size()));
  double worst = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(static_cast<double>(expected[i]) - y[i]);
    CHECK(error == error);
    worst = std::max(worst, error / norm);
  }
  return worst;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<const LinearKernels*> kernels_here() {
  std::vector<const LinearKernels*> tables;
  for (const InstructionSet set : instruction_sets()) tables.push_back(&kernels_for<LinearKernelsOf>(set));
  return tables;
}

Case one_type(DType dtype, std::int64_t rows, std::int64_t columns) {
  Case weights;
  weights.num_columns = columns;
  weights.add(dtype, rows, 17u + static_cast<unsigned>(dtype));
  return weights;
}

std::int64_t odd_columns(DType dtype) {
  const std::int64_t block = info(dtype).block_elements;
  return block == 1 ? 77 : block == 32 ? 160 : 512;
}

}  // namespace

TEST(every_type_and_row_count_follows_the_reference) {
  for (const DType dtype : kAllTypes) {
    const Case weights = one_type(dtype, 53, odd_columns(dtype));
    for (const std::int64_t rows : {1, 2, 3, 5, 8, 13, 33}) {
      const auto x = random_floats(static_cast<std::size_t>(rows * weights.num_columns), 3);
      const Product in_floats{.activation = Activation::kFloat32};
      const double exact = relative_error(weights, x, rows, in_floats(weights, x, rows));
      const double quantised = relative_error(weights, x, rows, Product{}(weights, x, rows));
      const std::string what = std::string(info(dtype).name) + " x " + std::to_string(rows);
      if (exact > 2e-5) check::fail(__FILE__, __LINE__, what + ", float32: " + std::to_string(exact));
      const double allowed = is_block_type(dtype) ? 0.06 : 2e-5;
      if (quantised > allowed) check::fail(__FILE__, __LINE__, what + ", int8: " + std::to_string(quantised));
    }
  }
}

TEST(quantised_activations_give_the_product_of_the_quantised_values) {
  // With activations that are multiples of their scale, quantisation is exact and only float rounding is left.
  for (const DType dtype : kBlockTypes) {
    const Case weights = one_type(dtype, 40, 512);
    std::mt19937 generator(5);
    std::vector<float> x(3 * 512);
    for (float& value : x) value = static_cast<float>(static_cast<int>(generator() % 255) - 127) * 0x1p-6f;
    for (std::size_t i = 0; i < x.size(); i += 32) x[i] = 127 * 0x1p-6f;
    const double error = relative_error(weights, x, 3, Product{}(weights, x, 3));
    if (error > 3e-6) check::fail(__FILE__, __LINE__, std::string(info(dtype).name) + ": " + std::to_string(error));
  }
}

TEST(extreme_codes_are_exact) {
  // All bytes 0xFF or 0x00 against activations of the largest magnitude and one sign: what overflows 16 bits, if any.
  for (const DType dtype : kBlockTypes) {
    for (const int fill : {0x00, 0x7F, 0x80, 0xFF}) {
      Case weights = one_type(dtype, 16, 256);
      std::fill(weights.data[0].begin(), weights.data[0].end(), static_cast<std::byte>(fill));
      const auto block_bytes = static_cast<std::size_t>(info(dtype).block_bytes);
      for (std::size_t block = 0; block < weights.data[0].size(); block += block_bytes) {
        if (dtype == DType::kMXFP4) weights.data[0][block] = std::byte{127};
        for (const int offset : half_offsets(dtype)) {
          const std::uint16_t one = float_to_half(offset % 4 == 0 ? 1.0f : 0.5f);
          std::memcpy(weights.data[0].data() + block + static_cast<std::size_t>(offset), &one, 2);
        }
      }
      for (const float sign : {1.0f, -1.0f}) {
        const std::vector<float> x(2 * 256, 127.0f * sign);
        std::vector<float> expected(2 * 16);
        multiply_reference(weights.parts, 256, x.data(), 2, expected.data());
        for (const LinearKernels* kernels : kernels_here()) {
          const auto y = Product{.kernels = kernels}(weights, x, 2);
          for (std::size_t i = 0; i < y.size(); ++i) CHECK_CLOSE(y[i], expected[i], std::abs(expected[i]) * 1e-6);
        }
      }
    }
  }
}

TEST(a_row_has_the_same_bits_alone_and_in_any_batch) {
  for (const DType dtype : kAllTypes) {
    for (const Activation activation : {Activation::kInt8, Activation::kFloat32}) {
      const Case weights = one_type(dtype, 85, odd_columns(dtype));
      const auto columns = static_cast<std::size_t>(weights.num_columns);
      const auto x = random_floats(33 * columns, 11);
      const auto together = Product{.num_threads = 3, .activation = activation}(weights, x, 33);
      for (std::size_t row = 0; row < 33; row += 4) {
        const std::vector<float> one(x.begin() + static_cast<std::ptrdiff_t>(row * columns),
                                     x.begin() + static_cast<std::ptrdiff_t>((row + 1) * columns));
        const auto alone = Product{.activation = activation}(weights, one, 1);
        if (std::memcmp(alone.data(), together.data() + row * 85, 85 * sizeof(float)) != 0) {
          check::fail(__FILE__, __LINE__, std::string(info(dtype).name) + " row " + std::to_string(row));
        }
      }
      for (const std::int64_t rows : {2, 5, 7, 12}) {
        const auto some = Product{.num_threads = 2, .activation = activation}(weights, x, rows);
        CHECK(std::memcmp(some.data(), together.data(), some.size() * sizeof(float)) == 0);
      }
    }
  }
}

TEST(instruction_sets_agree_bit_for_bit) {
  for (const DType dtype : kAllTypes) {
    const Case weights = one_type(dtype, 37, odd_columns(dtype));
    for (const std::int64_t rows : {1, 7}) {
      auto x = random_floats(static_cast<std::size_t>(rows * weights.num_columns), 23);
      std::fill(x.begin(), x.begin() + 32, 0.0f);
      for (const Activation activation : {Activation::kInt8, Activation::kFloat32}) {
        const auto expected = Product{.kernels = &kernels_for<LinearKernelsOf>(InstructionSet::kScalar), .activation = activation}(weights, x, rows);
        for (const LinearKernels* kernels : kernels_here()) {
          if (!same_bits(Product{.kernels = kernels, .activation = activation}(weights, x, rows), expected)) {
            check::fail(__FILE__, __LINE__, std::string(info(dtype).name));
          }
        }
      }
    }
  }
}

TEST(columns_beyond_one_panel) {
  // Panels hold 768 columns; what is left of a row's sum waits between them.
  for (const auto& [dtype, columns] : {std::pair{DType::kQ4_1, 800}, {DType::kQ8_0, 1600}, {DType::kQ4_K, 1280},
                                       {DType::kQ6_K, 1024}, {DType::kQ2_K, 2560}, {DType::kF16, 1031}}) {
    const Case weights = one_type(dtype, 49, columns);
    const auto x = random_floats(static_cast<std::size_t>(9 * columns), 41);
    CHECK(relative_error(weights, x, 9, Product{.activation = Activation::kFloat32}(weights, x, 9)) < 2e-5);
    const auto expected = Product{.kernels = &kernels_for<LinearKernelsOf>(InstructionSet::kScalar)}(weights, x, 9);
    CHECK(relative_error(weights, x, 9, expected) < 0.06);
    for (const LinearKernels* kernels : kernels_here()) {
      CHECK(same_bits(Product{.kernels = kernels, .num_threads = 2}(weights, x, 9), expected));
      for (std::int64_t row = 0; row < 9; row += 4) {
        const std::vector<float> one(x.begin() + row * columns, x.begin() + (row + 1) * columns);
        const auto alone = Product{.kernels = kernels}(weights, one, 1);
        CHECK(std::memcmp(alone.data(), expected.data() + row * 49, 49 * sizeof(float)) == 0);
      }
    }
  }
}

TEST(bias_and_accumulation) {
  const auto bias = random_floats(53, 7);
  for (const DType dtype : {DType::kQ4_1, DType::kF16}) {
    const Case weights = one_type(dtype, 53, 96);
    for (const std::int64_t rows : {1, 4}) {
      const auto x = random_floats(static_cast<std::size_t>(rows) * 96, 9);
      const auto plain = Product{}(weights, x, rows);
      const auto added =
          Product{.bias = bias.data(), .store = Store::kAdd, .padding = 3}(weights, x, rows, 2.0f);
      for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
        for (std::size_t i = 0; i < 53; ++i) CHECK_EQUAL(added[row * 56 + i], 2.0f + (plain[row * 53 + i] + bias[i]));
        for (std::size_t i = 53; i < 56; ++i) CHECK_EQUAL(added[row * 56 + i], 2.0f);
      }
    }
  }
}

TEST(parts_of_several_types_and_chosen_rows_are_stacked) {
  Case weights;
  weights.num_columns = 256;
  weights.add(DType::kQ4_K, 21, 1);
  weights.add(DType::kQ4_K, 19, 2);
  weights.add(DType::kQ6_K, 5, 3);
  weights.add(DType::kF16, 30, 4);
  weights.add(DType::kQ4_0, 0, 5);
  std::vector<std::int32_t> chosen{18, 3, 3, 0, 7};
  weights.parts[1].source_rows = chosen.data();
  weights.parts[1].num_rows = 5;
  weights.num_rows -= 14;
  for (const std::int64_t rows : {1, 6}) {
    const auto x = random_floats(static_cast<std::size_t>(rows) * 256, 31);
    CHECK(relative_error(weights, x, rows, Product{.activation = Activation::kFloat32}(weights, x, rows)) < 2e-5);
    CHECK(relative_error(weights, x, rows, Product{}(weights, x, rows)) < 0.06);
  }
}

TEST(fp8_scales_of_ragged_tiles) {
  for (const auto& [scale_rows, scale_columns] : {std::pair<int, int>{16, 24}, {1, 1000}, {7, 128}}) {
    Case weights;
    weights.num_columns = 133;
    weights.add(DType::kF8E4M3, 45, 1);
    weights.add(DType::kF8E4M3, 12, 2);
    const auto scales = random_floats(45 * 133, 8);
    for (MatrixPart& part : weights.parts) {
      part.scales = scales.data();
      part.scale_rows = scale_rows;
      part.scale_columns = scale_columns;
    }
    std::vector<std::int32_t> chosen(45);
    for (std::size_t i = 0; i < chosen.size(); ++i) chosen[i] = static_cast<std::int32_t>(44 - i);
    weights.parts[0].source_rows = chosen.data();
    for (const std::int64_t rows : {1, 3}) {
      const auto x = random_floats(static_cast<std::size_t>(rows) * 133, 12);
      CHECK(relative_error(weights, x, rows, Product{}(weights, x, rows)) < 5e-6);
    }
  }
}

TEST(fp8_codes_reach_the_product_as_they_are_defined) {
  // One row per code, one column of ones: all 256 codes, the NaNs included.
  std::vector<std::byte> codes(256);
  for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::byte>(i);
  Case weights;
  weights.num_columns = 1;
  weights.num_rows = 256;
  MatrixPart part;
  part.dtype = DType::kF8E4M3;
  part.data = codes.data();
  part.num_rows = 256;
  weights.parts.push_back(part);
  for (const LinearKernels* kernels : kernels_here()) {
    const auto y = Product{.kernels = kernels}(weights, {1.0f}, 1);
    for (std::size_t i = 0; i < 256; ++i) {
      const float expected = e4m3_to_float(static_cast<std::uint8_t>(i));
      CHECK(y[i] == expected || (y[i] != y[i] && expected != expected));
    }
  }
}

TEST(a_nan_or_an_infinity_in_a_row_reaches_its_results_and_no_others) {
  const Case weights = one_type(DType::kQ4_1, 16, 64);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const LinearKernels* kernels : kernels_here()) {
      auto x = random_floats(3 * 64, 2);
      const auto good = Product{.kernels = kernels}(weights, x, 3);
      x[64 + 40] = bad;
      const auto y = Product{.kernels = kernels}(weights, x, 3);
      for (std::size_t i = 0; i < 16; ++i) {
        CHECK_EQUAL(y[i], good[i]);
        CHECK(!(std::abs(y[16 + i]) < std::numeric_limits<float>::max()));
        CHECK_EQUAL(y[32 + i], good[32 + i]);
      }
    }
  }
}

TEST(what_cannot_be_packed_is_refused) {
  ThreadPool pool(1);
  Context context{pool};
  const std::vector<std::byte> bytes(4096);
  const auto pack = [&](DType dtype, std::int64_t columns) {
    MatrixPart part;
    part.dtype = dtype;
    part.data = bytes.data();
    part.num_rows = 2;
    return pack_matrix(context, {&part, 1}, columns, Activation::kInt8);
  };
  CHECK_THROWS(Error, pack(DType::kI32, 32));
  CHECK_THROWS(Error, pack(DType::kQ4_0, 48));
  CHECK_THROWS(Error, pack(DType::kQ4_K, 128));
  CHECK_THROWS(Error, pack(DType::kF32, 0));
  try {
    pack(DType::kQ6_K, 320);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kUnsupportedFeature);
    CHECK(std::string(error.what()).find("Q6_K") != std::string::npos);
  }
}

TEST(rows_are_gathered_dequantised) {
  ThreadPool pool(2);
  Context context{pool};
  for (const DType dtype : kAllTypes) {
    const auto table = random_rows(dtype, 9, 256, 3);
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 20; ++i) ids.push_back(i * 5 % 9);
    std::vector<float> out(20 * 256);
    gather_rows(context, dtype, table.data(), 256, ids, out.data());
    std::vector<float> row(256);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      dequantize_row(dtype, table.data() + static_cast<std::size_t>(ids[i]) * row_bytes(dtype, 256), 256, row.data());
      CHECK(std::memcmp(row.data(), out.data() + i * 256, 256 * sizeof(float)) == 0);
    }
  }
}
