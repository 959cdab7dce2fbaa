#include "kernels/cpu/sampling_inner.h"
#include "kernels/cpu/vector_math_avx2.h"

namespace pocket {

template struct SamplingKernelsOf<avx2::Lanes>;

}  // namespace pocket
