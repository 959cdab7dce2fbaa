#include "kernels/cpu/elementwise/inner.h"
#include "kernels/cpu/simd/vector_math_scalar.h"

namespace pocket {

template struct ElementwiseKernelsOf<scalar::Lanes>;

}  // namespace pocket
