#include "core/dtype.h"

#include <array>

namespace pocket {
namespace {

constexpr std::array kInfos = {
    DTypeInfo{"F32", 1, 4},      DTypeInfo{"F16", 1, 2},      DTypeInfo{"BF16", 1, 2},    DTypeInfo{"F8_E4M3", 1, 1},
    DTypeInfo{"F8_E8M0", 1, 1},  DTypeInfo{"I8", 1, 1},       DTypeInfo{"U8", 1, 1},      DTypeInfo{"I32", 1, 4},
    DTypeInfo{"I64", 1, 8},      DTypeInfo{"Q4_0", 32, 18},   DTypeInfo{"Q4_1", 32, 20},  DTypeInfo{"Q5_0", 32, 22},
    DTypeInfo{"Q5_1", 32, 24},   DTypeInfo{"Q8_0", 32, 34},   DTypeInfo{"Q2_K", 256, 84}, DTypeInfo{"Q3_K", 256, 110},
    DTypeInfo{"Q4_K", 256, 144}, DTypeInfo{"Q5_K", 256, 176}, DTypeInfo{"Q6_K", 256, 210}, DTypeInfo{"IQ4_NL", 32, 18},
    DTypeInfo{"IQ4_XS", 256, 136}, DTypeInfo{"MXFP4", 32, 17},
};

}  // namespace

const DTypeInfo& info(DType dtype) noexcept { return kInfos[static_cast<std::size_t>(dtype)]; }

std::optional<DType> dtype_named(std::string_view name) noexcept {
  for (std::size_t index = 0; index < kInfos.size(); ++index) {
    if (kInfos[index].name == name) return static_cast<DType>(index);
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_gguf(std::uint32_t number) noexcept {
  switch (number) {
    case 0: return DType::kF32;
    case 1: return DType::kF16;
    case 2: return DType::kQ4_0;
    case 3: return DType::kQ4_1;
    case 6: return DType::kQ5_0;
    case 7: return DType::kQ5_1;
    case 8: return DType::kQ8_0;
    case 10: return DType::kQ2_K;
    case 11: return DType::kQ3_K;
    case 12: return DType::kQ4_K;
    case 13: return DType::kQ5_K;
    case 14: return DType::kQ6_K;
    case 20: return DType::kIQ4_NL;
    case 23: return DType::kIQ4_XS;
    case 24: return DType::kI8;
    case 26: return DType::kI32;
    case 27: return DType::kI64;
    case 30: return DType::kBF16;
    case 39: return DType::kMXFP4;
    default: return std::nullopt;
  }
}

}  // namespace pocket
