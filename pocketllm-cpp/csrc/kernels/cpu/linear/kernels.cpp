#include "kernels/cpu/linear/kernels.h"

namespace pocket {

const LinearKernels& linear_kernels(InstructionSet set) noexcept {
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::kAvx2: return kAvx2Linear;
    case InstructionSet::kAvx512: return kAvx512Linear;
#elif defined(__aarch64__)
    case InstructionSet::kNeon: return kNeonLinear;
#endif
    default: return kScalarLinear;
  }
}

}  // namespace pocket
