// From logits to tokens, each sequence by its own rules: what they are for one row is put in plain numbers, and the
// device draws (kernels/sampling.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sequence.h"
#include "kernels/context.h"
#include "kernels/sampling.h"

namespace pocket {

struct SampleRow {
  Sequence* sequence = nullptr;
  std::int64_t logit_row = 0;
  std::int64_t num_ahead = 0;  // tokens sampled for the sequence before this one, and not committed yet
};

// Rows do not influence each other. Threads: the engine's alone.
class Sampler {
 public:
  // `vocab_size`: ids that may be generated.
  explicit Sampler(std::int64_t vocab_size) : vocab_size_(vocab_size) {}

  // Prepares a sequence's state from its parameters and its prompt; the matcher is there already.
  static void start(Sequence& sequence);

  // tokens[i] for rows[i], and each state moved on by it. A row whose constraint cannot be followed says so in its
  // state's `error`, and its token means nothing.
  void sample(Context& context, const LogitRows& logits, std::span<const SampleRow> rows,
              std::vector<std::int32_t>& tokens);

 private:
  void fill_mask(Sequence& sequence, std::vector<std::uint32_t>& words) const;
  static SamplingRow rules_of(const SampleRow& row, std::span<const std::uint32_t> mask);
  static void accept(Sequence& sequence, std::int32_t token);

  std::int64_t num_words() const noexcept { return (vocab_size_ + 31) / 32; }

  std::int64_t vocab_size_;
  std::vector<SamplingRow> rows_;
  std::vector<std::vector<std::uint32_t>> masks_;  // per row of the call, for those with a matcher
};

}  // namespace pocket
