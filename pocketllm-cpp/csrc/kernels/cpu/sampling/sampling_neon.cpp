#include "kernels/cpu/sampling/inner.h"
#include "kernels/cpu/simd/vector_math_neon.h"

namespace pocket {

template struct SamplingKernelsOf<neon::Lanes>;

}  // namespace pocket
