#include "kernels/cpu/delta_net_inner.h"
#include "kernels/cpu/vector_math_scalar.h"

namespace pocket {

template struct DeltaNetKernelsOf<scalar::Lanes>;

}  // namespace pocket
