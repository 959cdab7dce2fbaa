#include "kernels/cpu/attention/inner.h"
#include "kernels/cpu/simd/vector_math_neon.h"

namespace pocket {

template struct AttentionKernelsOf<neon::Lanes>;

}  // namespace pocket
