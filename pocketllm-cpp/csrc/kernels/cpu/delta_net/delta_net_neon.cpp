#include "kernels/cpu/delta_net/inner.h"
#include "kernels/cpu/simd/vector_math_neon.h"

namespace pocket {

template struct DeltaNetKernelsOf<neon::Lanes>;

}  // namespace pocket
