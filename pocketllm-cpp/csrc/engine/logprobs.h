// Log probabilities from raw logits: before penalties, bias, temperature and truncation, over the whole vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"
#include "kernels/context.h"
#include "kernels/sampling.h"

namespace pocket {

struct WantedLogprob {
  LogprobRow logprob;
  std::int32_t row = 0;  // for the entry
};

// Appends one entry for each.
void append_logprobs(Context& context, const LogitRows& logits, std::span<const WantedLogprob> wanted,
                     std::vector<Logprob>& entries);

}  // namespace pocket
