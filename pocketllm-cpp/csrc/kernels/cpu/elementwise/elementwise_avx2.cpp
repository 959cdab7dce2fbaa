#include "kernels/cpu/elementwise/inner.h"
#include "kernels/cpu/simd/vector_math_avx2.h"

namespace pocket {

template struct ElementwiseKernelsOf<avx2::Lanes>;

}  // namespace pocket
