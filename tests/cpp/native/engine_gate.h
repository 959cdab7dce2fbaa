// Holds an engine at the start of a pass, so that a test and not the clock says what is there when it steps.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>

namespace bench {

// Holds the engine's thread at the start of a pass.
class Gate {
 public:
  void shut() { permit(0); }
  void open() { permit(-1); }
  // So many more passes; returns when the engine stands before the next one.
  void let(int num_passes) {
    permit(num_passes);
    wait_for_engine();
  }
  void wait_for_engine() {
    std::unique_lock lock(mutex_);
    const auto stands = [this] { return num_waiting_ > 0 && num_permits_ == 0; };
    const bool came = changed_.wait_for(lock, std::chrono::seconds(20), stands);
    if (!came) throw std::runtime_error("the engine does not come to the gate");
  }
  void pass() {
    std::unique_lock lock(mutex_);
    ++num_waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return num_permits_ != 0; });
    --num_waiting_;
    if (num_permits_ > 0) --num_permits_;
  }

 private:
  void permit(int num_passes) {
    const std::lock_guard lock(mutex_);
    num_permits_ = num_passes;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int num_permits_ = -1;  // -1: no limit
  int num_waiting_ = 0;
};

// Sends the first request, and the others while the engine stands in its first step: what arrives with what is then
// the same in every run, and so is how often a scarce engine throws out a sequence.
template <class Requests, class Send>
void send_together(Gate& gate, const Requests& requests, Send send) {
  gate.shut();
  bool is_first = true;
  for (const auto& request : requests) {
    send(request);
    if (is_first) gate.wait_for_engine();
    is_first = false;
  }
  gate.open();
}

}  // namespace bench
