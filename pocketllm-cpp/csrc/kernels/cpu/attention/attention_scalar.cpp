#include "kernels/cpu/attention/inner.h"
#include "kernels/cpu/simd/vector_math_scalar.h"

namespace pocket {

template struct AttentionKernelsOf<scalar::Lanes>;

}  // namespace pocket
