#include "engine/engine.h"

#include <utility>

#include "engine/loop.h"

namespace pocket {

Engine::Engine(Runtime& runtime, const EngineOptions& options) : loop_(std::make_unique<Loop>(runtime, options)) {}

Engine::~Engine() = default;

void Engine::submit(Request request) { loop_->submit(std::move(request)); }
void Engine::cancel(std::uint64_t handle) { loop_->cancel(handle); }
void Engine::close(double deadline_s) { loop_->close(deadline_s); }
EngineStats Engine::stats() const { return loop_->stats(); }
std::int32_t Engine::max_batch_size() const noexcept { return loop_->max_batch_size(); }
void Engine::set_prefill_token_budget(std::int64_t num_tokens) { loop_->set_prefill_token_budget(num_tokens); }
std::int64_t Engine::prefill_token_budget() const { return loop_->prefill_token_budget(); }
std::int64_t Engine::prefill_tokens_beside_decodes() const { return loop_->prefill_tokens_beside_decodes(); }
void Engine::clear_prefix_cache() { loop_->clear_prefix_cache(); }
int Engine::fileno() const noexcept { return loop_->events().fileno(); }
std::vector<StepBatch> Engine::drain() { return loop_->events().drain(); }

}  // namespace pocket
