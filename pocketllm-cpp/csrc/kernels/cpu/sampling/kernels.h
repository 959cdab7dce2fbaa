// The inner loops of kernels/sampling.h, one table per instruction set.
#pragma once

#include <cstdint>

#include "kernels/sampling.h"

namespace pocket::cpu {

struct TokenLogit {
  std::int32_t id = 0;
  float logit = 0.0f;
};

struct SamplingKernels {
  // The largest that is not NaN; -inf when all are NaN.
  float (*largest)(const float* logits, std::int64_t count);
  // The first that is at least `threshold`, or count.
  std::int64_t (*find_at_least)(const float* logits, std::int64_t count, float threshold);
  // Writes {first_id + i, logits[i]} for those at least `threshold` to `out`, which has room for all; returns the
  // number.
  std::int64_t (*collect_at_least)(const float* logits, std::int64_t count, float threshold, std::int32_t first_id,
                                   TokenLogit* out);
  // Sum of exp(scale * logit - shift) over at most 1024 logits.
  float (*sum_exp)(const float* logits, std::int64_t count, float scale, float shift);
  // out[i] = exp(scale * logit - shift), as in sum_exp.
  void (*exponentials)(const float* logits, std::int64_t count, float scale, float shift, float* out);
  void (*mask_disallowed)(const std::uint32_t* words, std::int64_t num_words, std::int64_t count, float* logits);
};

template <class V>
struct SamplingKernelsOf {
  static const SamplingKernels& table() noexcept;
};

}  // namespace pocket::cpu
