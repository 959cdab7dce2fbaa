#include "kernels/cpu/sampling/inner.h"
#include "kernels/cpu/simd/vector_math_avx2.h"

namespace pocket {

template struct SamplingKernelsOf<avx2::Lanes>;

}  // namespace pocket
