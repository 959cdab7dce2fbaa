#include "kernels/cpu/sampling/inner.h"
#include "kernels/cpu/simd/vector_math_scalar.h"

namespace pocket {

template struct SamplingKernelsOf<scalar::Lanes>;

}  // namespace pocket
