// The seat of speculation: something that proposes tokens before the model computes them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pocket {

// A sequence that decodes in the next step.
struct DraftRequest {
  std::uint64_t handle = 0;
  std::span<const std::int32_t> tokens;  // prompt and answer
  std::int64_t max_tokens = 0;           // more proposals than this are cut off
  std::vector<std::int32_t>* draft = nullptr;  // empty; for the proposals, ids of the model's vocabulary
};

// Right proposals save steps; wrong ones cost rows and change no answer: a proposal is taken when it is the token that
// its sequence samples there anyway.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // Called on the engine's thread before each step in which something decodes. An exception ends the engine.
  virtual void propose(std::span<const DraftRequest> requests) = 0;
};

}  // namespace pocket
