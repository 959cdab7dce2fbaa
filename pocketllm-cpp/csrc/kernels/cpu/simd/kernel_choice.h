// Picks what an operation runs on.
//
// An operation's inner loops are templates over Lanes, instantiated once per instruction set in a file of its own
// (<op>_avx512.cpp) as `Kernels<Lanes>::table()`, a table of functions.
#pragma once

#include "kernels/cpu/simd/instruction_set.h"

namespace pocket {

namespace scalar {
struct Lanes;
}
namespace avx2 {
struct Lanes;
}
namespace avx512 {
struct Lanes;
}
namespace neon {
struct Lanes;
}

// The table for the instruction set in use. This is the one place that knows which of them a build has.
template <template <class> class Kernels>
const auto& chosen_kernels() noexcept {
  switch (instruction_set_in_use()) {
#if defined(__x86_64__)
    case InstructionSet::kAvx512:
      return Kernels<avx512::Lanes>::table();
    case InstructionSet::kAvx2:
      return Kernels<avx2::Lanes>::table();
#elif defined(__aarch64__)
    case InstructionSet::kNeon:
      return Kernels<neon::Lanes>::table();
#endif
    default:
      return Kernels<scalar::Lanes>::table();
  }
}

}  // namespace pocket
