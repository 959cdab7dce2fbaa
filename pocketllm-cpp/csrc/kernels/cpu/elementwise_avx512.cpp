#include "kernels/cpu/elementwise_inner.h"
#include "kernels/cpu/vector_math_avx512.h"

namespace pocket {

template struct ElementwiseKernelsOf<avx512::Lanes>;

}  // namespace pocket
