// Weight matrices of every stored type, and their products by definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "core/half.h"
#include "kernels/dequantize.h"
#include "kernels/linear.h"

namespace linear_cases {

using namespace pocket;

inline constexpr DType kBlockTypes[] = {DType::kQ4_0, DType::kQ4_1,   DType::kQ5_0,   DType::kQ5_1, DType::kQ8_0,
                                        DType::kQ2_K, DType::kQ3_K,   DType::kQ4_K,   DType::kQ5_K, DType::kQ6_K,
                                        DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4};
inline constexpr DType kAllTypes[] = {
    DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,   DType::kQ5_1,   DType::kQ8_0,  DType::kQ2_K, DType::kQ3_K, DType::kQ4_K,
    DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4, DType::kF32,  DType::kF16,  DType::kBF16,
    DType::kF8E4M3};

inline std::vector<float> random_floats(std::size_t count, unsigned seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// Where the fp16 scales of a block are; every other byte may have any value.
inline std::vector<int> half_offsets(DType dtype) {
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

inline std::vector<std::byte> random_rows(DType dtype, std::int64_t num_rows, std::int64_t num_columns, unsigned seed) {
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

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline Case one_type(DType dtype, std::int64_t rows, std::int64_t columns) {
  Case weights;
  weights.num_columns = columns;
  weights.add(dtype, rows, 17u + static_cast<unsigned>(dtype));
  return weights;
}

inline std::int64_t odd_columns(DType dtype) {
  const std::int64_t block = info(dtype).block_elements;
  return block == 1 ? 77 : block == 32 ? 160 : 512;
}

// y [num_rows, weights.num_rows]: dequantises each weight row by its format's definition and sums in double precision.
inline void multiply_by_definition(const Case& weights, const float* x, std::int64_t num_rows, float* y) {
  const std::int64_t columns = weights.num_columns;
  std::vector<float> row_values(static_cast<std::size_t>(columns));
  std::int64_t output = 0;
  for (const MatrixPart& part : weights.parts) {
    for (std::int64_t index = 0; index < part.num_rows; ++index, ++output) {
      const std::int64_t source = part.source_rows == nullptr ? index : part.source_rows[index];
      dequantize_row(part.dtype, part.data + static_cast<std::size_t>(source) * row_bytes(part.dtype, columns), columns,
                     row_values.data());
      for (std::int64_t k = 0; k < columns && part.scales != nullptr; ++k) {
        const std::int64_t tiles_across = (columns + part.scale_columns - 1) / part.scale_columns;
        row_values[static_cast<std::size_t>(k)] *=
            part.scales[source / part.scale_rows * tiles_across + k / part.scale_columns];
      }
      for (std::int64_t row = 0; row < num_rows; ++row) {
        double sum = 0.0;
        for (std::int64_t k = 0; k < columns; ++k) {
          sum += double{row_values[static_cast<std::size_t>(k)]} * double{x[row * columns + k]};
        }
        y[row * weights.num_rows + output] = static_cast<float>(sum);
      }
    }
  }
}

// Largest error relative to the norm of what the errors of single terms add up to.
inline double relative_error(const Case& weights, const std::vector<float>& x, std::int64_t num_rows,
                      const std::vector<float>& y) {
  std::vector<float> expected(static_cast<std::size_t>(num_rows * weights.num_rows));
  multiply_by_definition(weights, x.data(), num_rows, expected.data());
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

}  // namespace linear_cases
