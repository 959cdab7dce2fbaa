// Products of every device with every weight type, against their definition, and the promise that an element's bits
// depend on nothing but its own two rows.
#include <string>

#include "core/error.h"
#include "device_tensor.h"
#include "linear_cases.h"

namespace {

using namespace linear_cases;
using bench::DeviceBench;

struct Product {
  std::string device;
  int num_threads = 1;
  Activation activation = Activation::kInt8;
  const std::vector<float>* bias = nullptr;
  Store store = Store::kAssign;
  std::int64_t padding = 0;  // floats between the rows of y

  std::vector<float> operator()(const Case& weights, const std::vector<float>& x, std::int64_t num_rows,
                                float fill = 0.0f) const {
    DeviceBench here(device, num_threads);
    const auto matrix = pack_matrix(here.context(), weights.parts, weights.num_columns, activation);
    CHECK_EQUAL(matrix->num_rows(), weights.num_rows);
    CHECK_EQUAL(matrix->num_columns(), weights.num_columns);
    const std::int64_t stride = weights.num_rows + padding;
    auto rows = here.input(x);
    auto added = here.input(bias == nullptr ? std::vector<float>{} : *bias);
    auto y = here.output(std::vector<float>(static_cast<std::size_t>(num_rows * stride), fill));
    ActivationRows activations;
    activations.assign(here.context(), rows, num_rows, weights.num_columns, weights.num_columns, activation);
    multiply(here.context(), *matrix, activations, bias == nullptr ? nullptr : added.data(), y, stride, store);
    CHECK(rows.unchanged() && added.unchanged());
    return y.values();
  }
};

}  // namespace

TEST(every_type_and_row_count_follows_the_reference) {
  bench::on_each_device([](const std::string& name) {
    for (const DType dtype : kAllTypes) {
      const Case weights = one_type(dtype, 53, odd_columns(dtype));
      for (const std::int64_t rows : {1, 2, 3, 5, 8, 13, 33}) {
        const auto x = random_floats(static_cast<std::size_t>(rows * weights.num_columns), 3);
        const Product in_floats{.device = name, .activation = Activation::kFloat32};
        const double exact = relative_error(weights, x, rows, in_floats(weights, x, rows));
        const double quantised = relative_error(weights, x, rows, Product{.device = name}(weights, x, rows));
        const std::string what = std::string(info(dtype).name) + " x " + std::to_string(rows);
        if (exact > 2e-5) check::fail(__FILE__, __LINE__, what + ", float32: " + std::to_string(exact));
        const double allowed = is_block_type(dtype) ? 0.06 : 2e-5;
        if (quantised > allowed) check::fail(__FILE__, __LINE__, what + ", int8: " + std::to_string(quantised));
      }
    }
  });
}

TEST(quantised_activations_give_the_product_of_the_quantised_values) {
  bench::on_each_device([](const std::string& name) {
    // With activations that are multiples of their scale, quantisation is exact and only float rounding is left.
    for (const DType dtype : kBlockTypes) {
      const Case weights = one_type(dtype, 40, 512);
      std::mt19937 generator(5);
      std::vector<float> x(3 * 512);
      for (float& value : x) value = static_cast<float>(static_cast<int>(generator() % 255) - 127) * 0x1p-6f;
      for (std::size_t i = 0; i < x.size(); i += 32) x[i] = 127 * 0x1p-6f;
      const double error = relative_error(weights, x, 3, Product{.device = name}(weights, x, 3));
      if (error > 3e-6) check::fail(__FILE__, __LINE__, std::string(info(dtype).name) + ": " + std::to_string(error));
    }
  });
}

TEST(a_row_has_the_same_bits_alone_and_in_any_batch) {
  bench::on_each_device([](const std::string& name) {
    for (const DType dtype : kAllTypes) {
      for (const Activation activation : {Activation::kInt8, Activation::kFloat32}) {
        const Case weights = one_type(dtype, 85, odd_columns(dtype));
        const auto columns = static_cast<std::size_t>(weights.num_columns);
        const auto x = random_floats(33 * columns, 11);
        const auto together = Product{.device = name, .num_threads = 3, .activation = activation}(weights, x, 33);
        for (std::size_t row = 0; row < 33; row += 4) {
          const std::vector<float> one(x.begin() + static_cast<std::ptrdiff_t>(row * columns),
                                       x.begin() + static_cast<std::ptrdiff_t>((row + 1) * columns));
          const auto alone = Product{.device = name, .activation = activation}(weights, one, 1);
          if (std::memcmp(alone.data(), together.data() + row * 85, 85 * sizeof(float)) != 0) {
            check::fail(__FILE__, __LINE__, std::string(info(dtype).name) + " row " + std::to_string(row));
          }
        }
        for (const std::int64_t rows : {2, 5, 7, 12}) {
          const auto some = Product{.device = name, .num_threads = 2, .activation = activation}(weights, x, rows);
          CHECK(std::memcmp(some.data(), together.data(), some.size() * sizeof(float)) == 0);
        }
      }
    }
  });
}

TEST(bias_and_accumulation_are_added_to_the_product) {
  bench::on_each_device([](const std::string& name) {
    const auto bias = random_floats(53, 7);
    for (const DType dtype : {DType::kQ4_1, DType::kF16}) {
      const Case weights = one_type(dtype, 53, 96);
      for (const std::int64_t rows : {1, 4}) {
        const auto x = random_floats(static_cast<std::size_t>(rows) * 96, 9);
        const auto plain = Product{.device = name}(weights, x, rows);
        const auto added =
            Product{.device = name, .bias = &bias, .store = Store::kAdd, .padding = 3}(weights, x, rows, 2.0f);
        for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
          for (std::size_t i = 0; i < 53; ++i) CHECK_EQUAL(added[row * 56 + i], 2.0f + (plain[row * 53 + i] + bias[i]));
          for (std::size_t i = 53; i < 56; ++i) CHECK_EQUAL(added[row * 56 + i], 2.0f);
        }
      }
    }
  });
}

TEST(parts_of_several_types_and_chosen_rows_are_stacked) {
  bench::on_each_device([](const std::string& name) {
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
      const Product in_floats{.device = name, .activation = Activation::kFloat32};
      CHECK(relative_error(weights, x, rows, in_floats(weights, x, rows)) < 2e-5);
      CHECK(relative_error(weights, x, rows, Product{.device = name}(weights, x, rows)) < 0.06);
    }
  });
}

TEST(fp8_scales_of_ragged_tiles) {
  bench::on_each_device([](const std::string& name) {
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
        CHECK(relative_error(weights, x, rows, Product{.device = name}(weights, x, rows)) < 5e-6);
      }
    }
  });
}

TEST(what_cannot_be_packed_is_refused) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name, 1);
    Context& context = device.context();
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
  });
}

TEST(rows_are_gathered_dequantised) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name, 2);
    Context& context = device.context();
    for (const DType dtype : kAllTypes) {
      const auto table = random_rows(dtype, 9, 256, 3);
      std::vector<std::int32_t> ids;
      for (int i = 0; i < 20; ++i) ids.push_back(i * 5 % 9);
      auto stored = device.input(table);
      auto wanted = device.input(ids);
      auto gathered = device.output(std::vector<float>(20 * 256));
      gather_rows(context, dtype, stored, 256, wanted, 20, gathered);
      CHECK(stored.unchanged() && wanted.unchanged());
      const std::vector<float> out = gathered.values();
      std::vector<float> row(256);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        dequantize_row(dtype, table.data() + static_cast<std::size_t>(ids[i]) * row_bytes(dtype, 256), 256, row.data());
        CHECK(std::memcmp(row.data(), out.data() + i * 256, 256 * sizeof(float)) == 0);
      }
    }
  });
}

TEST(objects_of_another_device_are_refused) {
  const Case weights = one_type(DType::kF32, 4, 8);
  DeviceBench cpu("cpu"), reference("reference");
  const auto matrix = pack_matrix(cpu.context(), weights.parts, weights.num_columns, Activation::kFloat32);
  auto x = reference.input(std::vector<float>(8));
  auto y = reference.output(std::vector<float>(4));
  ActivationRows rows;
  rows.assign(reference.context(), x, 1, 8, 8, Activation::kFloat32);
  try {
    multiply(reference.context(), *matrix, rows, nullptr, y, 4, Store::kAssign);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kEngine);
    CHECK_EQUAL(std::string(error.what()),
                "A weight matrix of the device \"cpu\" was given to an operation of the device \"reference\".");
    return;
  }
  CHECK(false);
}
