// The CPU's products by the functions of each instruction set that runs here: all give the same bits.
#include <limits>

#include "kernels/cpu/linear/matrix.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/devices.h"
#include "linear_cases.h"

namespace {

using namespace linear_cases;
using pocket::cpu::instruction_sets;
using pocket::cpu::InstructionSet;
using pocket::cpu::kernels_for;
using pocket::cpu::kernels_in_use;
using pocket::cpu::LinearKernels;
using pocket::cpu::LinearKernelsOf;

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
    Context context = open_device("cpu", pool);
    const auto matrix = pack_matrix(context, weights.parts, weights.num_columns, activation);
    CHECK_EQUAL(matrix->num_rows(), weights.num_rows);
    CHECK_EQUAL(matrix->num_columns(), weights.num_columns);
    cpu::QuantisableRows state(context.device);
    cpu::assign_with(*kernels, context, x.data(), num_rows, weights.num_columns, weights.num_columns, activation,
                     state);
    const std::int64_t stride = weights.num_rows + padding;
    std::vector<float> y(static_cast<std::size_t>(num_rows * stride), fill);
    cpu::multiply_with(*kernels, context, static_cast<const cpu::PackedMatrix&>(*matrix), state, bias, y.data(),
                       stride, store);
    return y;
  }
};

// The scalar ones first.
std::vector<const LinearKernels*> kernels_here() {
  std::vector<const LinearKernels*> tables;
  for (const InstructionSet set : instruction_sets()) tables.push_back(&kernels_for<LinearKernelsOf>(set));
  return tables;
}

}  // namespace

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
        multiply_by_definition(weights, x.data(), 2, expected.data());
        for (const LinearKernels* kernels : kernels_here()) {
          const auto y = Product{.kernels = kernels}(weights, x, 2);
          for (std::size_t i = 0; i < y.size(); ++i) CHECK_CLOSE(y[i], expected[i], std::abs(expected[i]) * 1e-6);
        }
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
        const auto expected = Product{.kernels = kernels_here().front(), .activation = activation}(weights, x, rows);
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
    const auto expected = Product{.kernels = kernels_here().front()}(weights, x, 9);
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
