#include "kernels/cpu/attention_inner.h"
#include "kernels/cpu/vector_math_avx2.h"

namespace pocket {

template struct AttentionKernelsOf<avx2::Lanes>;

}  // namespace pocket
