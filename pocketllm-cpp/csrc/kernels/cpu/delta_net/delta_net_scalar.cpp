#include "kernels/cpu/delta_net/inner.h"
#include "kernels/cpu/simd/vector_math_scalar.h"

namespace pocket {

template struct DeltaNetKernelsOf<scalar::Lanes>;

}  // namespace pocket
