#include "kernels/cpu/delta_net/inner.h"
#include "kernels/cpu/simd/vector_math_avx2.h"

namespace pocket {

template struct DeltaNetKernelsOf<avx2::Lanes>;

}  // namespace pocket
