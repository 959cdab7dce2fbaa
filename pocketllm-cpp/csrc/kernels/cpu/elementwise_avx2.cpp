#include "kernels/cpu/elementwise_inner.h"
#include "kernels/cpu/vector_math_avx2.h"

namespace pocket {

template struct ElementwiseKernelsOf<avx2::Lanes>;

}  // namespace pocket
