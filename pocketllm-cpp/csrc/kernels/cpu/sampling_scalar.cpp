#include "kernels/cpu/sampling_inner.h"
#include "kernels/cpu/vector_math_scalar.h"

namespace pocket {

template struct SamplingKernelsOf<scalar::Lanes>;

}  // namespace pocket
