#include "kernels/cpu/simd/dispatch.h"

#include <cstdlib>
#include <string>

#include "core/error.h"

namespace pocket::cpu {
namespace {

// Whether the CPU has what the build compiles the set for (cmake/instruction_sets.cmake), and the system saves it.
bool runs(InstructionSet set) {
  switch (set) {
    case InstructionSet::kScalar:
      return true;
#if defined(POCKET_WITH_AVX2)
    case InstructionSet::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
             __builtin_cpu_supports("bmi2");
#endif
#if defined(POCKET_WITH_AVX512)
    case InstructionSet::kAvx512:
      return runs(InstructionSet::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
             __builtin_cpu_supports("avx512bf16");
#endif
#if defined(POCKET_WITH_NEON)
    case InstructionSet::kNeon:
      return true;
#endif
    default:
      return false;
  }
}

InstructionSet find() {
  const std::vector<InstructionSet> sets = instruction_sets();
  const char* wanted = std::getenv("POCKET_INSTRUCTION_SET");
  if (wanted == nullptr || *wanted == '\0') return sets.back();
  std::string names;
  for (const InstructionSet set : sets) {
    if (std::string(wanted) == name_of(set)) return set;
    names += (names.empty() ? "" : ", ") + std::string(name_of(set));
  }
  throw Error(ErrorKind::kConfiguration,
              "POCKET_INSTRUCTION_SET is \"" + std::string(wanted) +
                  "\", which this build on this CPU does not have; it has " + names +
                  ". Set the variable to one of these, or unset it for the best.",
              "POCKET_INSTRUCTION_SET");
}

}  // namespace

const char* name_of(InstructionSet set) noexcept {
  switch (set) {
    case InstructionSet::kScalar: return "scalar";
    case InstructionSet::kAvx2: return "avx2";
    case InstructionSet::kAvx512: return "avx512";
    case InstructionSet::kNeon: return "neon";
  }
  return "";
}

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets;
  for (const InstructionSet set :
       {InstructionSet::kScalar, InstructionSet::kAvx2, InstructionSet::kAvx512, InstructionSet::kNeon}) {
    if (runs(set)) sets.push_back(set);
  }
  return sets;
}

InstructionSet instruction_set_in_use() {
  static const InstructionSet set = find();
  return set;
}

const char* instruction_set() { return name_of(instruction_set_in_use()); }

}  // namespace pocket::cpu
