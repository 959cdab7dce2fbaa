#include "models/embedding.h"

#include <string>

#include "core/error.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"

namespace pocket {

void Embedding::look_up(Context& context, std::span<const std::int32_t> tokens, float* out) {
  const std::int64_t vocab_size = table_.shape[0];
  const std::int64_t hidden_size = table_.shape[1];
  for (const std::int32_t token : tokens) {
    if (token >= 0 && token < vocab_size) continue;
    throw Error(ErrorKind::kConfiguration,
                "Token id " + std::to_string(token) + " is outside the model's vocabulary of " +
                    std::to_string(vocab_size) + ". Encode the prompt with this checkpoint's tokenizer.",
                "prompt");
  }
  const auto num_tokens = static_cast<std::int64_t>(tokens.size());
  std::int32_t* ids = ids_.reserve<std::int32_t>(context.device, tokens.size());
  copy_from_host(context, tokens, ids);
  gather_rows(context, table_.dtype, rows_.data(), hidden_size, ids, num_tokens, out);
  if (scale_ != 1.0f) scale_rows(context, num_tokens * hidden_size, scale_, out);
}

}  // namespace pocket
