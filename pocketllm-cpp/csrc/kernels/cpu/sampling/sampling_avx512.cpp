#include "kernels/cpu/sampling/inner.h"
#include "kernels/cpu/simd/vector_math_avx512.h"

namespace pocket {

template struct SamplingKernelsOf<avx512::Lanes>;

}  // namespace pocket
