#include "engine/logprobs.h"

#include "kernels/sampling.h"

namespace pocket {

void append_logprobs(Context& context, std::span<const LogprobRow> rows, std::int64_t vocab_size,
                     std::vector<Logprob>& entries) {
  const std::size_t first = entries.size();
  entries.resize(first + rows.size());
  context.threads.run(static_cast<std::int64_t>(rows.size()), [&](std::int64_t index, int) {
    const LogprobRow& row = rows[static_cast<std::size_t>(index)];
    Logprob& entry = entries[first + static_cast<std::size_t>(index)];
    const std::span<const float> logits{row.logits, static_cast<std::size_t>(vocab_size)};
    const double normalizer = log_sum_exp(logits);
    entry.row = row.row;
    entry.logprob = static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(row.token)]) - normalizer);
    if (row.num_top <= 0) return;
    std::vector<TokenLogit> top;
    top_logits(logits, row.num_top, top);
    entry.top.reserve(top.size());
    for (const TokenLogit& each : top) {
      entry.top.emplace_back(each.id, static_cast<float>(static_cast<double>(each.logit) - normalizer));
    }
  });
}

}  // namespace pocket
