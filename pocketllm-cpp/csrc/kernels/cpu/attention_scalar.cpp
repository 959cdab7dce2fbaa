#include "kernels/cpu/attention_inner.h"
#include "kernels/cpu/vector_math_scalar.h"

namespace pocket {

template struct AttentionKernelsOf<scalar::Lanes>;

}  // namespace pocket
