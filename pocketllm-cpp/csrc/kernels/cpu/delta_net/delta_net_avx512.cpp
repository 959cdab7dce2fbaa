#include "kernels/cpu/delta_net/inner.h"
#include "kernels/cpu/simd/vector_math_avx512.h"

namespace pocket {

template struct DeltaNetKernelsOf<avx512::Lanes>;

}  // namespace pocket
