#include "kernels/cpu/elementwise_inner.h"
#include "kernels/cpu/vector_math_scalar.h"

namespace pocket {

template struct ElementwiseKernelsOf<scalar::Lanes>;

}  // namespace pocket
