#include "kernels/cpu/delta_net_inner.h"
#include "kernels/cpu/vector_math_avx512.h"

namespace pocket {

template struct DeltaNetKernelsOf<avx512::Lanes>;

}  // namespace pocket
