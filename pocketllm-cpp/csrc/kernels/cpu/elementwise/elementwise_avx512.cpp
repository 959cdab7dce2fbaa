#include "kernels/cpu/elementwise/inner.h"
#include "kernels/cpu/simd/vector_math_avx512.h"

namespace pocket {

template struct ElementwiseKernelsOf<avx512::Lanes>;

}  // namespace pocket
