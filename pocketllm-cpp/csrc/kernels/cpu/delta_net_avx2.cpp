#include "kernels/cpu/delta_net_inner.h"
#include "kernels/cpu/vector_math_avx2.h"

namespace pocket {

template struct DeltaNetKernelsOf<avx2::Lanes>;

}  // namespace pocket
