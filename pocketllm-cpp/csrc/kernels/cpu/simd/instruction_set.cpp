#include "kernels/cpu/simd/instruction_set.h"

#include <cstdlib>
#include <string_view>

#include "kernels/linear.h"

namespace pocket {
namespace {

constexpr const char* kNames[] = {"scalar", "avx2", "avx512", "neon"};

const char* name_of(InstructionSet set) { return kNames[static_cast<int>(set)]; }

// What the files *_avx2.cpp and *_avx512.cpp are compiled for (CMakeLists.txt), and the system saves.
bool has(InstructionSet set) {
#if defined(__x86_64__)
  switch (set) {
    case InstructionSet::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
             __builtin_cpu_supports("bmi2");
    case InstructionSet::kAvx512:
      return has(InstructionSet::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
             __builtin_cpu_supports("avx512bf16");
    default:
      return set == InstructionSet::kScalar;
  }
#elif defined(__aarch64__)
  return set == InstructionSet::kNeon || set == InstructionSet::kScalar;
#else
  return set == InstructionSet::kScalar;
#endif
}

InstructionSet find() {
  if (const char* wanted = std::getenv("POCKET_INSTRUCTION_SET")) {
    for (int index = 0; index < 4; ++index) {
      const auto set = static_cast<InstructionSet>(index);
      if (std::string_view(wanted) == kNames[index] && has(set)) return set;
    }
  }
  for (const InstructionSet set : {InstructionSet::kNeon, InstructionSet::kAvx512, InstructionSet::kAvx2}) {
    if (has(set)) return set;
  }
  return InstructionSet::kScalar;
}

}  // namespace

InstructionSet instruction_set_in_use() noexcept {
  static const InstructionSet set = find();
  return set;
}

const char* instruction_set() noexcept { return name_of(instruction_set_in_use()); }

}  // namespace pocket
