// Which instruction set the kernels of this process run on, and each operation's inner loops for it.
//
// An operation's inner loops are templates over a set's Floats, in <op>/kernels.cpp. The build compiles that file once
// per set and defines POCKET_WITH_<SET> (cmake/instruction_sets.cmake); only this header and dispatch.cpp ask for it.
#pragma once

#include <vector>

namespace pocket::cpu {

namespace scalar {
struct Floats;
}
namespace avx2 {
struct Floats;
}
namespace avx512 {
struct Floats;
}
namespace neon {
struct Floats;
}

enum class InstructionSet { kScalar, kAvx2, kAvx512, kNeon };

const char* name_of(InstructionSet set) noexcept;

// The sets that this build has and this CPU runs; the best comes last.
std::vector<InstructionSet> instruction_sets();

// The best of them, or the one that the environment variable POCKET_INSTRUCTION_SET names; found once. Throws
// Error(kConfiguration) when the variable names a set that is not among them.
InstructionSet instruction_set_in_use();
// Its name. Throws as that does.
const char* instruction_set();

// An operation's table for a set. A set that the build lacks gives the scalar one.
template <template <class> class KernelsOf>
const auto& kernels_for(InstructionSet set) noexcept {
  switch (set) {
#if defined(POCKET_WITH_AVX2)
    case InstructionSet::kAvx2:
      return KernelsOf<avx2::Floats>::table();
#endif
#if defined(POCKET_WITH_AVX512)
    case InstructionSet::kAvx512:
      return KernelsOf<avx512::Floats>::table();
#endif
#if defined(POCKET_WITH_NEON)
    case InstructionSet::kNeon:
      return KernelsOf<neon::Floats>::table();
#endif
    default:
      return KernelsOf<scalar::Floats>::table();
  }
}

template <template <class> class KernelsOf>
const auto& kernels_in_use() {
  return kernels_for<KernelsOf>(instruction_set_in_use());
}

}  // namespace pocket::cpu
