#include "kernels/cpu/sampling_inner.h"
#include "kernels/cpu/vector_math_avx512.h"

namespace pocket {

template struct SamplingKernelsOf<avx512::Lanes>;

}  // namespace pocket
