#include "kernels/cpu/attention_inner.h"
#include "kernels/cpu/vector_math_neon.h"

namespace pocket {

template struct AttentionKernelsOf<neon::Lanes>;

}  // namespace pocket
