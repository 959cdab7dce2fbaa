// One sequence driven by its caller, token by token, without the scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "core/device.h"
#include "engine/request.h"
#include "engine/runtime.h"
#include "kernels/sampling.h"

namespace pocket {

// The runtime must outlive it, and nothing else may use the runtime meanwhile. One thread at a time.
//
// Logits are [vocab_size] per row, the model's rows, in host memory, and valid until the next call. All methods that
// append throw Error(kConfiguration) when the context would overflow or an id is outside the vocabulary; nothing has
// changed then. When the model itself throws, the session is reset.
class Session {
 public:
  explicit Session(Runtime& runtime);

  // Forgets the sequence; the next prefill starts at position 0.
  void reset();
  // Makes the sequence `tokens` (a whole prompt) and returns the logits after the last one. What it has in common with
  // the session's tokens is not computed again; with recurrent layers, only when it continues all of them, and
  // otherwise it starts at position 0. The very same tokens again cost nothing.
  std::span<const float> prefill(std::span<const std::int32_t> tokens);
  std::span<const float> decode_step(std::int32_t token);
  // Logits [tokens.size(), vocab_size] after each of the tokens; they stay appended.
  std::span<const float> verify_step(std::span<const std::int32_t> tokens);
  // Takes back the newest `num_tokens`. Throws Error(kUnsupportedFeature) for models with recurrent layers,
  // Error(kConfiguration) when there are fewer.
  void truncate(std::int64_t num_tokens);

  // The same logits in device memory.
  LogitRows logits() const noexcept {
    const std::int64_t vocab_size = runtime_.model().shape().vocab_size;
    return {logits_.as<float>(), vocab_size, vocab_size};
  }

  std::int64_t position() const noexcept { return static_cast<std::int64_t>(tokens_.size()); }
  // Of the last prefill.
  std::int64_t num_reused_tokens() const noexcept { return num_reused_tokens_; }

 private:
  void check(std::span<const std::int32_t> tokens, std::int64_t position) const;
  std::span<const float> append(std::span<const std::int32_t> tokens, bool is_prompt, bool all_logits);
  std::span<const float> host_logits(std::size_t num_rows);
  void forward(std::span<const std::int32_t> tokens, bool chunked, std::span<const std::int32_t> logit_rows);

  Runtime& runtime_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> blocks_;
  std::vector<std::int32_t> logit_rows_;
  DeviceBuffer logits_;
  Buffer host_logits_;  // where the host does not see the device's memory
  bool has_last_logits_ = false;  // logits_ begins with those after the last token
  std::int64_t num_reused_tokens_ = 0;
};

}  // namespace pocket
