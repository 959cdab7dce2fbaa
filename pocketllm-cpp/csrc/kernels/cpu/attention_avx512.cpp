#include "kernels/cpu/attention_inner.h"
#include "kernels/cpu/vector_math_avx512.h"

namespace pocket {

template struct AttentionKernelsOf<avx512::Lanes>;

}  // namespace pocket
