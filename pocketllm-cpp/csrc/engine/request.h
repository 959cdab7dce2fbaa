// What enters and leaves the engine.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "structured/matcher_functions.h"

namespace pocket {

struct SamplingParams {
  float temperature = 0.0f;  // at most 1e-5: greedy
  float top_p = 1.0f;
  std::int32_t top_k = 0;  // 0: no limit
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  std::vector<std::pair<std::int32_t, float>> logit_bias;
  std::int64_t max_tokens = 0;  // > 0
  std::int64_t min_tokens = 0;
  bool logprobs = false;
  std::int32_t num_top_logprobs = 0;
  bool prompt_logprobs = false;
};

struct Choice {
  std::uint64_t handle = 0;
  std::uint64_t seed = 0;
  MatcherPointers matcher;
};

// The choices share one prompt and one prefill.
struct Request {
  std::vector<std::int32_t> prompt;  // not empty
  std::vector<Choice> choices;       // not empty
  SamplingParams sampling;
  std::vector<std::int32_t> stop_ids;
  std::int64_t priority = 0;  // higher goes first
  std::string cache_salt;
};

struct Logprob {
  std::int32_t row = 0;  // of the batch, or a prompt position
  float logprob = 0.0f;
  std::vector<std::pair<std::int32_t, float>> top;  // best first
};

struct PromptReport {
  std::uint64_t handle = 0;
  std::int64_t num_cached_tokens = 0;
  std::vector<Logprob> logprobs;
};

enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled, kError };
const char* finish_reason_name(FinishReason reason) noexcept;  // core's words

struct Finish {
  std::uint64_t handle = 0;
  FinishReason reason = FinishReason::kStop;
  std::string error;
};

inline constexpr std::int32_t kStopFlag = 1;  // TokenFlag.STOP

// What one step produced; the columns have equal lengths.
struct StepBatch {
  std::vector<std::uint64_t> handles;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> flags;
  std::vector<Logprob> logprobs;
  std::vector<PromptReport> prompts;
  std::vector<Finish> finished;
  std::string fatal;  // not empty: the engine is broken and will post nothing more
};

}  // namespace pocket
