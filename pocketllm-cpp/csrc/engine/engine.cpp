// The engine as its callers see it: everything here may run on any thread.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "engine/engine.h"

namespace pocket {
namespace {

constexpr double kLongestWait_s = 1e9;  // as nanoseconds it still fits a clock

// Releases what a request brought, unless it has been taken over.
struct MatcherGuard {
  std::vector<Choice>& choices;
  ~MatcherGuard() {
    for (Choice& choice : choices) OwnedMatcher{std::exchange(choice.matcher, {})};
  }
};

[[noreturn]] void refuse(const std::string& message, const char* param) {
  throw Error(ErrorKind::kConfiguration, message, param);
}

void check_ids(std::int32_t id, std::int64_t vocab_size, const char* name) {
  if (id >= 0 && id < vocab_size) return;
  refuse(std::string{name} + " has the id " + std::to_string(id) + ", which is outside this model's " +
             std::to_string(vocab_size) + " tokens.",
         name);
}

std::int64_t generated_ids(Runtime& runtime, std::int64_t asked_for) {
  const std::int64_t rows = runtime.model().shape().vocab_size;
  return asked_for > 0 ? std::min(asked_for, rows) : rows;
}

std::unique_ptr<StatePool> make_states(Runtime& runtime) {
  if (runtime.states() == nullptr) return nullptr;
  return std::make_unique<StatePool>(runtime.num_slots(), runtime.kv().shape().num_blocks, runtime.num_snapshots(),
                                     runtime.segment_length());
}

std::unique_ptr<Drafter> check_drafter(Runtime& runtime, std::unique_ptr<Drafter> drafter) {
  if (drafter != nullptr && runtime.states() != nullptr) {
    throw Error(ErrorKind::kUnsupportedFeature,
                "This model has recurrent layers, whose states cannot be taken back when a proposed token turns out to "
                "be another: open the engine without a drafter.",
                "drafter");
  }
  return drafter;
}

}  // namespace

Engine::Engine(Runtime& runtime, const EngineOptions& options, std::unique_ptr<Drafter> drafter)
    : runtime_(runtime),
      vocab_size_(generated_ids(runtime, options.vocab_size)),
      budget_(options.prefill_token_budget),
      beside_decodes_(options.prefill_tokens_beside_decodes),
      pool_(runtime.kv().shape().num_blocks),
      states_(make_states(runtime)),
      cache_(options.prefix_cache ? std::make_unique<PrefixCache>(pool_, states_.get(), runtime.kv().shape().block_size)
                                  : nullptr),
      drafter_(check_drafter(runtime, std::move(drafter))),
      scheduler_(pool_, cache_.get(), states_.get(), runtime.kv().shape().block_size,
                 std::clamp(options.max_batch_size, 1, runtime.num_slots())),
      runner_(runtime, vocab_size_),
      sampler_(vocab_size_) {
  publish_stats();
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() { close(kLongestWait_s); }

void Engine::submit(Request request) {
  const MatcherGuard guard{request.choices};
  check(request);
  Sequences sequences = make_sequences(request);
  {
    const std::lock_guard lock(mutex_);
    if (!fatal_.empty()) throw Error(ErrorKind::kEngine, fatal_);
    if (closing_) throw Error(ErrorKind::kEngine, "The engine is closed: open a new one.");
    for (std::size_t index = 0; index < sequences.size(); ++index) {
      if (open_handles_.insert(sequences[index]->handle).second) continue;
      const std::uint64_t taken = sequences[index]->handle;
      while (index-- > 0) open_handles_.erase(sequences[index]->handle);
      refuse("The handle " + std::to_string(taken) + " is in use: give every choice one of its own.", "handle");
    }
    for (const auto& sequence : sequences) sequence->arrival = num_arrivals_++;
    inbox_.arrivals.push_back(std::move(sequences));
    has_mail_.store(true, std::memory_order_release);
  }
  wake_.notify_one();
}

void Engine::check(const Request& request) const {
  if (request.prompt.empty()) refuse("prompt_tokens is empty: give at least one id.", "prompt_tokens");
  if (request.choices.empty()) refuse("A request needs at least one choice.", "n");
  if (request.sampling.max_tokens < 1) {
    refuse("max_tokens = " + std::to_string(request.sampling.max_tokens) + ": give 1 or more.", "max_tokens");
  }
  for (const std::int32_t id : request.prompt) check_ids(id, vocab_size_, "prompt_tokens");
  for (const auto& [id, bias] : request.sampling.logit_bias) check_ids(id, vocab_size_, "logit_bias");
  const auto num_tokens = static_cast<std::int64_t>(request.prompt.size());
  if (num_tokens >= runtime_.max_model_len()) {
    refuse("The prompt has " + std::to_string(num_tokens) + " tokens, which leaves no room for an answer within " +
               std::to_string(runtime_.max_model_len()) + ": shorten it, or raise max_model_len.",
           "prompt_tokens");
  }
}

Engine::Sequences Engine::make_sequences(Request& request) const {
  const auto group = std::make_shared<PromptGroup>();
  group->sampling = std::move(request.sampling);
  group->stop_ids = std::move(request.stop_ids);
  std::sort(group->stop_ids.begin(), group->stop_ids.end());
  group->cache_salt = std::move(request.cache_salt);
  group->priority = request.priority;
  const auto num_prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
  std::vector<BlockKey> keys;
  if (cache_ != nullptr) cache_->extend_keys(group->cache_salt, request.prompt, keys);
  Sequences sequences;
  for (Choice& choice : request.choices) {
    auto sequence = std::make_unique<Sequence>();
    sequence->group = group;
    sequence->handle = choice.handle;
    sequence->seed = choice.seed;
    sequence->tokens = request.prompt;
    sequence->num_prompt_tokens = num_prompt_tokens;
    sequence->max_tokens = std::min(group->sampling.max_tokens, runtime_.max_model_len() - num_prompt_tokens);
    sequence->keys = keys;
    sequence->sampling.matcher = OwnedMatcher(std::exchange(choice.matcher, {}));
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

void Engine::cancel(std::uint64_t handle) {
  {
    const std::lock_guard lock(mutex_);
    if (!open_handles_.contains(handle)) return;
    inbox_.cancelled.push_back(handle);
    has_mail_.store(true, std::memory_order_release);
  }
  wake_.notify_one();
}

void Engine::clear_prefix_cache() {
  {
    const std::lock_guard lock(mutex_);
    inbox_.clear_cache = true;
    has_mail_.store(true, std::memory_order_release);
  }
  wake_.notify_one();
}

void Engine::close(double deadline_s) {
  const double wait_s = std::isnan(deadline_s) ? 0.0 : std::clamp(deadline_s, 0.0, kLongestWait_s);
  const std::chrono::duration<double> deadline{wait_s};
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    has_mail_.store(true, std::memory_order_release);
    wake_.notify_one();
    if (!stopped_.wait_for(lock, deadline, [this] { return has_stopped_; })) {
      lock.unlock();
      abandon(FinishReason::kCancelled, {}, {});  // a step outlasts the deadline
      return;
    }
  }
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

// Answers for every open handle without the sequences.
void Engine::abandon(FinishReason reason, const std::string& error, const std::string& fatal) {
  const std::lock_guard lock(mutex_);
  if (abandoned_) return;
  abandoned_ = true;
  if (fatal_.empty()) fatal_ = fatal;
  if (open_handles_.empty() && fatal.empty()) return;
  StepBatch batch;
  for (const std::uint64_t handle : open_handles_) batch.finished.push_back({handle, reason, error});
  std::sort(batch.finished.begin(), batch.finished.end(),
            [](const Finish& a, const Finish& b) { return a.handle < b.handle; });
  open_handles_.clear();
  batch.fatal = fatal;
  if (events_.post(std::move(batch))) events_.wake();
}

}  // namespace pocket
