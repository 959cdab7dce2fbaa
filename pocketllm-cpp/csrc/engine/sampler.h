// From logits to tokens, each sequence by its own rules.
//
// Order, per row: repetition, frequency and presence penalty; logit bias; stop ids forbidden while min_tokens is not
// reached; the matcher's mask. A greedy row then takes the largest logit (the lowest id of equals). Otherwise the
// logits are divided by the temperature, and what is kept shrinks by top_k, then top_p (of the probability that top_k
// left), then min_p (relative to the most probable token); one uniform number picks among the rest: by ascending id,
// or from the most probable on when top_k or top_p is in use.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "engine/sequence.h"
#include "engine/wide_nucleus.h"
#include "kernels/context.h"
#include "kernels/sampling.h"

namespace pocket {

// Buffers of one thread, kept between calls.
struct PickScratch {
  std::vector<TokenLogit> candidates;
  std::vector<double> weights;
  WideNucleusScratch wide;
  Buffer row;
};

// Samples from adjusted logits [vocab_size] with a uniform number in [0, 1); greedy parameters ignore it.
std::int32_t pick(std::span<const float> logits, const SamplingParams& params, double number, PickScratch& scratch);

struct SampleRow {
  Sequence* sequence = nullptr;
  const float* logits = nullptr;  // raw, [vocab_size]; left as they are
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
  void sample(Context& context, std::span<const SampleRow> rows, std::vector<std::int32_t>& tokens);

 private:
  void fill_mask(Sequence& sequence, std::size_t row);
  std::int32_t choose(const SampleRow& row, std::size_t index, PickScratch& scratch) const;
  static void accept(Sequence& sequence, std::int32_t token);

  std::int64_t num_words() const noexcept { return (vocab_size_ + 31) / 32; }

  std::int64_t vocab_size_;
  // Per row of the call, for those with a matcher; filled on the engine's thread.
  std::vector<std::vector<std::uint32_t>> masks_;
  std::vector<char> is_complete_;
  std::vector<PickScratch> scratch_;  // per thread
};

}  // namespace pocket
