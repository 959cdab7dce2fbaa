#include "kernels/cpu/sampling_inner.h"
#include "kernels/cpu/vector_math_neon.h"

namespace pocket {

template struct SamplingKernelsOf<neon::Lanes>;

}  // namespace pocket
