// What the stored bytes of a weight row mean.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace pocket {

// `num_elements` elements of a stored row as floats; the definition of each format, in host memory. F8_E4M3 gives the
// bare codes. Throws Error(kUnsupportedFeature) for what is not a type of weights.
void dequantize_row(DType dtype, const std::byte* data, std::int64_t num_elements, float* out);

}  // namespace pocket
