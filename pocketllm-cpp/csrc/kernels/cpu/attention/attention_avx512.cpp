#include "kernels/cpu/attention/inner.h"
#include "kernels/cpu/simd/vector_math_avx512.h"

namespace pocket {

template struct AttentionKernelsOf<avx512::Lanes>;

}  // namespace pocket
