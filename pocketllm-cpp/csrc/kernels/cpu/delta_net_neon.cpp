#include "kernels/cpu/delta_net_inner.h"
#include "kernels/cpu/vector_math_neon.h"

namespace pocket {

template struct DeltaNetKernelsOf<neon::Lanes>;

}  // namespace pocket
