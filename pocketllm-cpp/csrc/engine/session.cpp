#include "engine/session.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "core/error.h"

namespace pocket {
namespace {

// Rows of one forward pass: bounds the memory that a long prompt's activations take.
constexpr std::int64_t kMaxRows = 512;
// A session is the only user of the cache and the states.
constexpr std::int32_t kStateSlot = 0;

}  // namespace

Session::Session(Runtime& runtime) : runtime_(runtime) {
  const std::int64_t block_size = runtime.kv().shape().block_size;
  blocks_.resize(static_cast<std::size_t>((runtime.max_model_len() + block_size - 1) / block_size));
  std::iota(blocks_.begin(), blocks_.end(), 0);
  reset();
}

void Session::reset() {
  tokens_.clear();
  has_last_logits_ = false;
  num_reused_tokens_ = 0;
  if (runtime_.states() != nullptr) runtime_.states()->clear(runtime_.context(), kStateSlot);
}

std::span<const float> Session::prefill(std::span<const std::int32_t> tokens) {
  check(tokens, 0);
  std::int64_t num_common =
      std::mismatch(tokens_.begin(), tokens_.end(), tokens.begin(), tokens.end()).first - tokens_.begin();
  const auto num_tokens = static_cast<std::int64_t>(tokens.size());
  if (has_last_logits_ && num_common == num_tokens && num_common == position()) {
    num_reused_tokens_ = num_tokens;
    return host_logits(1);
  }
  num_common = std::min(num_common, num_tokens - 1);  // the last one is computed for its logits
  if (runtime_.states() != nullptr && num_common < position()) num_common = 0;
  if (num_common == 0) {
    reset();
  } else {
    tokens_.resize(static_cast<std::size_t>(num_common));
  }
  num_reused_tokens_ = num_common;
  return append(tokens.subspan(static_cast<std::size_t>(num_common)), true, false);
}

std::span<const float> Session::decode_step(std::int32_t token) {
  const std::span<const std::int32_t> tokens{&token, 1};
  check(tokens, position());
  return append(tokens, false, false);
}

std::span<const float> Session::verify_step(std::span<const std::int32_t> tokens) {
  check(tokens, position());
  return append(tokens, false, true);
}

void Session::truncate(std::int64_t num_tokens) {
  if (runtime_.states() != nullptr) {
    throw Error(ErrorKind::kUnsupportedFeature,
                "This model has recurrent layers, whose states cannot be taken back: reset the session and prefill.",
                "num_tokens");
  }
  if (num_tokens < 0 || num_tokens > position()) {
    throw Error(ErrorKind::kConfiguration,
                "num_tokens = " + std::to_string(num_tokens) + ", but the session holds " +
                    std::to_string(position()) + ": give that or less.",
                "num_tokens");
  }
  if (num_tokens == 0) return;
  tokens_.resize(static_cast<std::size_t>(position() - num_tokens));
  has_last_logits_ = false;
}

void Session::check(std::span<const std::int32_t> tokens, std::int64_t position) const {
  if (tokens.empty()) throw Error(ErrorKind::kConfiguration, "tokens is empty: give at least one id.", "tokens");
  const std::int64_t vocab_size = runtime_.model().shape().vocab_size;
  for (const std::int32_t token : tokens) {
    if (token >= 0 && token < vocab_size) continue;
    throw Error(ErrorKind::kConfiguration,
                "tokens has the id " + std::to_string(token) + ", which is outside this model's " +
                    std::to_string(vocab_size) + " tokens.",
                "tokens");
  }
  const std::int64_t end = position + static_cast<std::int64_t>(tokens.size());
  if (end > runtime_.max_model_len()) {
    throw Error(ErrorKind::kConfiguration,
                "The sequence would have " + std::to_string(end) + " tokens, and the context " +
                    std::to_string(runtime_.max_model_len()) + ": shorten it, or raise max_context.",
                "tokens");
  }
}

std::span<const float> Session::append(std::span<const std::int32_t> tokens, bool is_prompt, bool all_logits) {
  const auto vocab = static_cast<std::size_t>(runtime_.model().shape().vocab_size);
  const std::size_t num_wanted = all_logits ? tokens.size() : 1;
  has_last_logits_ = false;
  logits_.reserve<float>(runtime_.context().device, num_wanted * vocab);
  while (!tokens.empty()) {
    // Recurrent layers compute prompts in segments that begin at multiples of their length, and up to there one by one.
    const std::int64_t past = position() % runtime_.segment_length();
    const bool chunked = is_prompt && past == 0;
    const std::int64_t most = is_prompt && past != 0 ? runtime_.segment_length() - past : kMaxRows;
    const bool is_last = all_logits || static_cast<std::int64_t>(tokens.size()) <= most;
    const auto length = is_last ? tokens.size() : static_cast<std::size_t>(most);
    logit_rows_.resize(all_logits ? length : is_last ? 1 : 0);
    std::iota(logit_rows_.begin(), logit_rows_.end(), static_cast<std::int32_t>(length - logit_rows_.size()));
    try {
      forward(tokens.first(length), chunked, logit_rows_);
    } catch (...) {
      // A recurrent state may have moved: the sequence cannot continue from here.
      reset();
      throw;
    }
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(length));
    tokens = tokens.subspan(length);
  }
  has_last_logits_ = num_wanted == 1;
  return host_logits(num_wanted);
}

std::span<const float> Session::host_logits(std::size_t num_rows) {
  const auto vocab = static_cast<std::size_t>(runtime_.model().shape().vocab_size);
  return read_back(runtime_.context(), logits_.as<float>(), num_rows * vocab, host_logits_);
}

void Session::forward(std::span<const std::int32_t> tokens, bool chunked, std::span<const std::int32_t> logit_rows) {
  const SequenceRows rows{0, static_cast<std::int32_t>(tokens.size()), position(), blocks_, kStateSlot, chunked};
  Caches caches = runtime_.caches();
  runtime_.model().forward(runtime_.context(), {tokens, {&rows, 1}, logit_rows}, caches, logits_.as<float>());
}

}  // namespace pocket
