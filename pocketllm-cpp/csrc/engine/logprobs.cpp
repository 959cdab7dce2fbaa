#include "engine/logprobs.h"

#include <utility>

namespace pocket {

void append_logprobs(Context& context, const LogitRows& logits, std::span<const WantedLogprob> wanted,
                     std::vector<Logprob>& entries) {
  std::vector<LogprobRow> rows;
  rows.reserve(wanted.size());
  for (const WantedLogprob& each : wanted) rows.push_back(each.logprob);
  std::vector<TokenLogprob> results(rows.size());
  log_probabilities(context, logits, rows, results);
  entries.reserve(entries.size() + rows.size());
  for (std::size_t index = 0; index < rows.size(); ++index) {
    entries.push_back({wanted[index].row, results[index].logprob, std::move(results[index].top)});
  }
}

}  // namespace pocket
