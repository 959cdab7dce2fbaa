// Drains an engine's events and judges every stream while it grows.
#pragma once

#include <poll.h>

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "engine/engine.h"

namespace record {

struct Stream {
  std::int64_t max_tokens = 0;
  std::vector<std::int32_t> stop_ids;
  bool logprobs = false;
  std::vector<std::int32_t> tokens;
  std::vector<pocket::Logprob> rows;  // log probabilities
  std::vector<std::size_t> batches;   // number of the batch that brought each token
  std::optional<pocket::PromptReport> report;
  std::optional<pocket::Finish> finish;
};

class Recorder {
 public:
  explicit Recorder(pocket::Engine& engine) : engine_(engine) {}

  void expect(const pocket::Request& request) {
    for (const pocket::Choice& choice : request.choices) {
      Stream& stream = streams_[choice.handle];
      stream.max_tokens = request.sampling.max_tokens;
      stream.stop_ids = request.stop_ids;
      stream.logprobs = request.sampling.logprobs;
    }
  }

  Stream& operator[](std::uint64_t handle) { return streams_.at(handle); }
  const std::string& fatal() const { return fatal_; }
  std::size_t num_batches() const { return num_batches_; }

  void drain() {
    for (const pocket::StepBatch& batch : engine_.drain()) take(batch);
  }

  // Throws when `done` does not become true in time.
  template <class Done>
  void wait(Done done, double timeout_s = 20.0) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
    for (;;) {
      drain();
      if (done()) return;
      if (std::chrono::steady_clock::now() > end) throw std::runtime_error("waited in vain for the engine");
      pollfd events{engine_.fileno(), POLLIN, 0};
      poll(&events, 1, 50);
    }
  }

  Stream& wait_end(std::uint64_t handle) {
    wait([&] { return streams_.at(handle).finish.has_value(); });
    return streams_.at(handle);
  }
  void wait_all() {
    wait([&] {
      for (const auto& [handle, stream] : streams_) {
        if (!stream.finish) return false;
      }
      return true;
    });
  }
  void wait_tokens(std::uint64_t handle, std::size_t count) {
    wait([&] { return streams_.at(handle).tokens.size() >= count || streams_.at(handle).finish; });
  }

 private:
  static void require(bool condition, const char* what, std::uint64_t handle) {
    if (condition) return;
    std::ostringstream text;
    text << "stream " << handle << ": " << what;
    throw std::runtime_error(text.str());
  }

  Stream& open_stream(std::uint64_t handle) {
    const auto found = streams_.find(handle);
    require(found != streams_.end(), "events of a handle that was never accepted", handle);
    require(!found->second.finish, "something follows the final event", handle);
    return found->second;
  }

  void take(const pocket::StepBatch& batch) {
    require(fatal_.empty(), "a batch follows the fatal one", 0);
    require(batch.handles.size() == batch.tokens.size() && batch.handles.size() == batch.flags.size(),
            "columns of different lengths", 0);
    for (const pocket::PromptReport& report : batch.prompts) {
      Stream& stream = open_stream(report.handle);
      require(!stream.report && stream.tokens.empty(), "a late or second prompt report", report.handle);
      stream.report = report;
    }
    std::map<std::int32_t, const pocket::Logprob*> logprobs;
    for (const pocket::Logprob& entry : batch.logprobs) {
      require(logprobs.emplace(entry.row, &entry).second, "two log probabilities for a row", 0);
    }
    std::set<std::uint64_t> stopped;
    for (std::size_t row = 0; row < batch.handles.size(); ++row) {
      const std::uint64_t handle = batch.handles[row];
      Stream& stream = open_stream(handle);
      require(stream.report.has_value(), "a token before the prompt report", handle);
      require(!stopped.contains(handle), "a row follows a stop id", handle);
      const bool is_stop =
          std::find(stream.stop_ids.begin(), stream.stop_ids.end(), batch.tokens[row]) != stream.stop_ids.end();
      require(is_stop == (batch.flags[row] == pocket::kStopFlag), "a wrong stop flag", handle);
      if (is_stop) stopped.insert(handle);
      const bool has_logprob = logprobs.contains(static_cast<std::int32_t>(row));
      require(has_logprob == (stream.logprobs && !is_stop), "log probabilities missing or unasked for", handle);
      if (has_logprob) stream.rows.push_back(*logprobs[static_cast<std::int32_t>(row)]);
      stream.tokens.push_back(batch.tokens[row]);
      stream.batches.push_back(num_batches_);
      require(static_cast<std::int64_t>(stream.tokens.size()) <= stream.max_tokens, "more than max_tokens", handle);
    }
    for (const pocket::Finish& finish : batch.finished) {
      Stream& stream = open_stream(finish.handle);
      using enum pocket::FinishReason;
      const bool is_stopped = stopped.contains(finish.handle);
      require(!is_stopped || finish.reason == kStop, "a stop id without reason stop", finish.handle);
      require(finish.reason != kLength || static_cast<std::int64_t>(stream.tokens.size()) == stream.max_tokens,
              "length before max_tokens", finish.handle);
      require((finish.reason == kError) != finish.error.empty(), "an error without text, or text without error",
              finish.handle);
      stream.finish = finish;
      stopped.erase(finish.handle);
    }
    require(stopped.empty(), "a stop id does not end its stream", stopped.empty() ? 0 : *stopped.begin());
    fatal_ = batch.fatal;
    ++num_batches_;
  }

  pocket::Engine& engine_;
  std::map<std::uint64_t, Stream> streams_;
  std::size_t num_batches_ = 0;
  std::string fatal_;
};

}  // namespace record
