// Log probabilities from raw logits: before penalties, bias, temperature and truncation, over the whole vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"
#include "kernels/context.h"

namespace pocket {

struct LogprobRow {
  const float* logits = nullptr;  // raw, [vocab_size]
  std::int32_t token = 0;         // whose log probability is wanted
  std::int32_t num_top = 0;       // alternatives to list, best first, equal ones by lower id
  std::int32_t row = 0;           // for the entry
};

// Appends one entry per row.
void append_logprobs(Context& context, std::span<const LogprobRow> rows, std::int64_t vocab_size,
                     std::vector<Logprob>& entries);

}  // namespace pocket
