// The block formats against values that the reference reader of GGUF (the Python package gguf) gives for one block of
// each: byte i is (37 * i + 11) % 256, the fp16 scales are 0.5 and then 0.25, MXFP4's exponent is 126.
#include "kernels/cpu/linear/block_formats.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "core/error.h"
#include "core/half.h"
#include "kernels/cpu/linear/packed_form.h"
#include "kernels/dequantize.h"

namespace {

using namespace pocket;
using namespace pocket::cpu;

struct Expected {
  DType dtype;
  double weighted_sum;  // of element i times 1 + i % 7
  std::vector<std::pair<int, float>> elements;
};

const std::vector<Expected> kExpected = {
    {DType::kQ4_0, 14.0,
     {{0, -1.5f}, {1, 1.0f}, {15, -4.0f}, {16, -1.5f}, {17, -0.5f}, {31, 0.0f}}},
    {DType::kQ4_1, 478.5,
     {{0, 7.75f}, {1, 2.25f}, {15, 5.25f}, {16, 4.75f}, {17, 6.25f}, {31, 6.25f}}},
    {DType::kQ5_0, 56.0,
     {{0, 4.5f}, {1, -1.0f}, {15, -6.0f}, {16, 7.0f}, {17, 0.0f}, {31, 0.5f}}},
    {DType::kQ5_1, 936.0,
     {{0, 9.75f}, {1, 12.25f}, {15, 15.25f}, {16, 9.75f}, {17, 2.75f}, {31, 2.75f}}},
    {DType::kQ8_0, -309.0,
     {{0, 42.5f}, {1, 61.0f}, {15, -64.0f}, {16, -45.5f}, {17, -27.0f}, {31, -24.0f}}},
    {DType::kQ2_K, 4015.75,
     {{0, 16.5f}, {1, 0.0f}, {15, 11.0f}, {16, -0.75f}, {17, -0.75f}, {31, -0.75f}, {32, 3.75f}, {63, 3.25f},
      {64, 5.25f}, {100, 10.0f}, {127, 21.0f}, {128, 3.75f}, {160, 11.25f}, {200, 4.0f}, {224, 1.25f}, {255, 2.25f}}},
    {DType::kQ3_K, 1482.0,
     {{0, 40.5f}, {1, -54.0f}, {15, -27.0f}, {16, -48.0f}, {17, 64.0f}, {31, 32.0f}, {32, -11.0f}, {63, 5.0f},
      {64, 17.0f}, {100, 0.0f}, {127, 36.0f}, {128, 1.0f}, {160, 13.0f}, {200, 12.5f}, {224, 6.0f}, {255, 21.0f}}},
    {DType::kQ4_K, 105074.5,
     {{0, 157.75f}, {1, -12.75f}, {15, 80.25f}, {16, 157.75f}, {17, -12.75f}, {31, 80.25f}, {32, 4.0f}, {63, 20.0f},
      {64, 210.25f}, {100, 47.5f}, {127, 40.5f}, {128, 211.5f}, {160, 262.5f}, {200, 69.25f}, {224, 0.25f},
      {255, 24.25f}}},
    {DType::kQ5_K, 229678.5,
     {{0, 405.75f}, {1, -12.75f}, {15, 80.25f}, {16, 405.75f}, {17, -12.75f}, {31, 80.25f}, {32, 56.0f}, {63, 40.0f},
      {64, 210.25f}, {100, 117.5f}, {127, -1.5f}, {128, 523.5f}, {160, 82.5f}, {200, 69.25f}, {224, 30.25f},
      {255, 54.25f}}},
    {DType::kQ6_K, 4938.5,
     {{0, -715.5f}, {1, 848.0f}, {15, -159.0f}, {16, -216.0f}, {17, 256.0f}, {31, -48.0f}, {32, 115.5f}, {63, -290.0f},
      {64, -1520.0f}, {100, 1261.5f}, {127, 750.0f}, {128, -175.5f}, {160, 335.5f}, {200, 544.5f}, {224, 423.0f},
      {255, -30.0f}}},
    {DType::kIQ4_NL, 306.5,
     {{0, -17.5f}, {1, 12.5f}, {15, -63.5f}, {16, -17.5f}, {17, -5.0f}, {31, 0.5f}}},
    {DType::kIQ4_XS, -72196.0,
     {{0, 32.5f}, {1, -0.5f}, {15, -44.5f}, {16, 32.5f}, {17, 17.5f}, {31, 17.5f}, {32, 227.5f}, {63, -87.5f},
      {64, 390.0f}, {100, 20.0f}, {127, 98.0f}, {128, -292.5f}, {160, -455.0f}, {200, 570.0f}, {224, 520.0f},
      {255, -8.0f}}},
    {DType::kMXFP4, 21.25,
     {{0, 0.0f}, {1, 1.5f}, {15, -0.75f}, {16, 0.75f}, {17, 1.5f}, {31, 1.5f}}},
};

// Where the scales are: d, then the one of the mins.
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

std::vector<std::byte> block_bytes(DType dtype) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(info(dtype).block_bytes));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((37 * i + 11) % 256);
  float value = 0.5f;
  for (const int offset : half_offsets(dtype)) {
    const std::uint16_t half = float_to_half(value);
    std::memcpy(bytes.data() + offset, &half, sizeof half);
    value = 0.25f;
  }
  if (dtype == DType::kMXFP4) bytes[0] = std::byte{126};
  return bytes;
}

}  // namespace

TEST(every_format_reads_as_the_reference_does) {
  for (const Expected& expected : kExpected) {
    const int count = info(expected.dtype).block_elements;
    std::vector<float> values(static_cast<std::size_t>(count));
    dequantize_row(expected.dtype, block_bytes(expected.dtype).data(), count, values.data());
    double sum = 0.0;
    for (int i = 0; i < count; ++i) sum += static_cast<double>(values[static_cast<std::size_t>(i)]) * (1 + i % 7);
    if (sum != expected.weighted_sum) check::fail(__FILE__, __LINE__, std::string(info(expected.dtype).name));
    for (const auto& [index, value] : expected.elements) CHECK_EQUAL(values[static_cast<std::size_t>(index)], value);
  }
}

TEST(rows_of_several_blocks_are_dequantised_block_by_block) {
  for (const Expected& expected : kExpected) {
    const auto one = block_bytes(expected.dtype);
    std::vector<std::byte> row;
    for (int i = 0; i < 3; ++i) row.insert(row.end(), one.begin(), one.end());
    const auto count = static_cast<std::size_t>(info(expected.dtype).block_elements);
    std::vector<float> values(3 * count);
    dequantize_row(expected.dtype, row.data(), static_cast<std::int64_t>(values.size()), values.data());
    for (std::size_t i = count; i < values.size(); ++i) CHECK_EQUAL(values[i], values[i - count]);
  }
}

TEST(mxfp4_scales_at_the_ends) {
  for (const auto& [exponent, unit] : {std::pair<int, float>{0, 0x1p-128f}, {1, 0x1p-127f}, {2, 0x1p-126f},
                                       {127, 0.5f}, {254, 0x1p126f}}) {
    std::vector<std::byte> block(17);
    block[0] = static_cast<std::byte>(exponent);
    block[1] = std::byte{0xF1};  // element 0: 0.5, stored doubled; element 16: -6
    std::vector<float> values(32);
    dequantize_row(DType::kMXFP4, block.data(), 32, values.data());
    CHECK_EQUAL(values[0], unit);
    CHECK_EQUAL(values[16], -12 * unit);
  }
}

TEST(plain_types_are_read_as_they_are) {
  const std::uint16_t halves[] = {0x3C00, 0xC000, 0x0001};
  float values[3];
  dequantize_row(DType::kF16, reinterpret_cast<const std::byte*>(halves), 3, values);
  CHECK_EQUAL(values[0], 1.0f);
  CHECK_EQUAL(values[1], -2.0f);
  CHECK_EQUAL(values[2], 0x1p-24f);
  const std::uint16_t bfloats[] = {0x3F80, 0xC049};
  dequantize_row(DType::kBF16, reinterpret_cast<const std::byte*>(bfloats), 2, values);
  CHECK_EQUAL(values[0], 1.0f);
  CHECK_EQUAL(values[1], -3.140625f);
  const std::byte codes[] = {std::byte{0x38}, std::byte{0xFE}, std::byte{0x01}};
  dequantize_row(DType::kF8E4M3, codes, 3, values);
  CHECK_EQUAL(values[0], 1.0f);
  CHECK_EQUAL(values[1], -448.0f);
  CHECK_EQUAL(values[2], 0x1p-9f);
  CHECK_THROWS(Error, dequantize_row(DType::kI32, codes, 1, values));
}

TEST(packed_forms_stay_close_to_the_stored_size) {
  for (const Expected& expected : kExpected) {
    const PackedForm form = packed_form(expected.dtype);
    const double stored = static_cast<double>(row_bytes(expected.dtype, 1024)) * kStripRows;
    const auto packed = static_cast<double>(form.strip_bytes(num_units_of(1024)));
    CHECK(packed < stored * 1.2);
    CHECK_EQUAL(form.unit_bytes() % kLineBytes, 0);
  }
}
