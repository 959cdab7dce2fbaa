#include "kernels/cpu/elementwise_inner.h"
#include "kernels/cpu/vector_math_neon.h"

namespace pocket {

template struct ElementwiseKernelsOf<neon::Lanes>;

}  // namespace pocket
