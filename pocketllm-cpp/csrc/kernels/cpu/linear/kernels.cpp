// The products over any instruction set's vectors (see kernels.h for the order of operations).
#include "kernels/cpu/linear/kernels.h"

#include "kernels/cpu/linear/float_tiles.h"
#include "kernels/cpu/linear/row.h"
#include "kernels/cpu/linear/tiles.h"
#include POCKET_SIMD_HEADER
#if defined(POCKET_SIMD_AVX512)
#include "kernels/cpu/linear/quantise_avx512.h"
#endif

namespace pocket::cpu {

template <class V>
const LinearKernels& LinearKernelsOf<V>::table() noexcept {
  static constexpr LinearKernels kTable{V::Ints::kWideOffset, quantise_row<V>, expand_codes<V>,   expand_floats<V>,
                                        multiply_panels<V>, multiply_row<V>, multiply_floats<V>};
  return kTable;
}

template struct LinearKernelsOf<POCKET_SIMD::Floats>;

}  // namespace pocket::cpu
