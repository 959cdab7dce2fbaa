#include "kernels/cpu/attention/inner.h"
#include "kernels/cpu/simd/vector_math_avx2.h"

namespace pocket {

template struct AttentionKernelsOf<avx2::Lanes>;

}  // namespace pocket
