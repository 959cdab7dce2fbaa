#include "kernels/cpu/elementwise/inner.h"
#include "kernels/cpu/simd/vector_math_neon.h"

namespace pocket {

template struct ElementwiseKernelsOf<neon::Lanes>;

}  // namespace pocket
