#include "engine/session.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <mutex>

#include "bindings/init.h"
#include "bindings/runtime.h"
#include "core/error.h"
#include "engine/request.h"
#include "kernels/sampling.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pocket {
namespace {

// A session with the logits of its last call. Calls from several threads wait for each other.
class BoundSession {
 public:
  explicit BoundSession(BoundRuntime& runtime)
      : runtime_(runtime), lease_(runtime.lease(false)), session_(runtime.runtime()) {}

  void reset() {
    auto held = runtime_.enter(lease_);
    logits_ = {};
    session_.reset();
  }

  void prefill(const std::vector<std::int32_t>& tokens) {
    auto held = runtime_.enter(lease_);
    logits_ = {};
    logits_ = session_.prefill(tokens);
  }

  void decode_step(std::int32_t token) {
    auto held = runtime_.enter(lease_);
    logits_ = {};
    logits_ = session_.decode_step(token);
  }

  void verify_step(const std::vector<std::int32_t>& tokens) {
    auto held = runtime_.enter(lease_);
    logits_ = {};
    logits_ = session_.verify_step(tokens);
  }

  void truncate(std::int64_t num_tokens) {
    auto held = runtime_.enter(lease_);
    session_.truncate(num_tokens);
  }

  std::int64_t position() {
    auto held = runtime_.enter(lease_);
    return session_.position();
  }

  std::int64_t num_reused_tokens() {
    auto held = runtime_.enter(lease_);
    return session_.num_reused_tokens();
  }

  std::int64_t num_rows() {
    auto held = runtime_.enter(lease_);
    return static_cast<std::int64_t>(logits_.size()) / vocab_size();
  }

  std::vector<float> logits(std::int64_t row) {
    auto held = runtime_.enter(lease_);
    const auto size = static_cast<std::size_t>(vocab_size());
    const std::span<const float> found = logits_.subspan(static_cast<std::size_t>(index_of(row)) * size, size);
    return {found.begin(), found.end()};
  }

  std::int32_t argmax_of(std::int64_t row) {
    auto held = runtime_.enter(lease_);
    return sample_row(row, {});
  }

  std::vector<std::pair<std::int32_t, float>> top(std::int64_t count, std::int64_t row) {
    auto held = runtime_.enter(lease_);
    return top_logits(context(), session_.logits(), index_of(row), count);
  }

  std::int32_t pick_from(const SamplingParams& sampling, double number, std::int64_t row) {
    auto held = runtime_.enter(lease_);
    SamplingRow rules;
    rules.temperature = sampling.temperature;
    rules.top_p = sampling.top_p;
    rules.min_p = sampling.min_p;
    rules.top_k = sampling.top_k;
    rules.uniform = number;
    return sample_row(row, rules);
  }

 private:
  std::int64_t vocab_size() const { return runtime_.runtime().model().shape().vocab_size; }

  Context& context() const { return runtime_.runtime().context(); }

  std::int32_t sample_row(std::int64_t row, SamplingRow rules) {
    rules.row = index_of(row);
    std::int32_t token = 0;
    sample(context(), session_.logits(), {&rules, 1}, {&token, 1});
    return token;
  }

  std::int64_t index_of(std::int64_t row) const {
    const std::int64_t num_rows = static_cast<std::int64_t>(logits_.size()) / vocab_size();
    if (num_rows == 0) {
      throw Error(ErrorKind::kConfiguration,
                  "This session has no logits yet: call prefill, decode_step or verify_step.");
    }
    const std::int64_t index = row < 0 ? num_rows + row : row;
    if (index < 0 || index >= num_rows) {
      throw Error(ErrorKind::kConfiguration,
                  "row = " + std::to_string(row) + " is out of range: the last call gave " + std::to_string(num_rows) +
                      " rows of logits.",
                  "row");
    }
    return index;
  }

  BoundRuntime& runtime_;
  std::int64_t lease_;
  Session session_;
  std::span<const float> logits_;
};

}  // namespace

void init_session(nb::module_& module) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<BoundSession>(module, "Session",
                           "One sequence driven token by token. It may be used until something else takes its runtime; "
                           "afterwards all methods raise ConfigurationError. Calls from several threads wait for each other, "
                           "without the interpreter's lock. Methods that append raise ConfigurationError, and change nothing, "
                           "for an id outside the vocabulary or a full context.")
      .def(nb::init<BoundRuntime&>(), "runtime"_a, nb::keep_alive<1, 2>(), Release(),
           "Takes the runtime from the session before. Raises ConfigurationError while an engine has it.")
      .def("reset", &BoundSession::reset, Release(), "Forgets the sequence.")
      .def("prefill", &BoundSession::prefill, "tokens"_a, Release(),
           "Makes tokens the whole sequence; what it shares with the sequence before is not computed again. Leaves one row "
           "of logits.")
      .def("decode_step", &BoundSession::decode_step, "token"_a, Release(), "Appends one token. Leaves one row of logits.")
      .def("verify_step", &BoundSession::verify_step, "tokens"_a, Release(),
           "Appends all tokens in one pass. Leaves a row of logits for each.")
      .def("truncate", &BoundSession::truncate, "num_tokens"_a, Release(),
           "Takes back the newest tokens. Raises UnsupportedFeatureError for models with recurrent layers, ConfigurationError "
           "when there are fewer.")
      .def_prop_ro("position", &BoundSession::position, Release(), "Tokens of the sequence.")
      .def_prop_ro("num_reused_tokens", &BoundSession::num_reused_tokens, Release(),
                   "Tokens that the last prefill did not compute again.")
      .def_prop_ro("num_rows", &BoundSession::num_rows, Release(), "Rows of logits that the last call left.")
      .def("argmax", &BoundSession::argmax_of, "row"_a = -1, Release(),
           "The id with the largest logit of a row; -1 is the last row. Of equal ones, the lowest id.")
      .def("top", &BoundSession::top, "count"_a, "row"_a = -1, Release(), "count (id, logit) pairs of a row, largest first.")
      .def("pick", &BoundSession::pick_from, "sampling"_a, "number"_a, "row"_a = -1, Release(),
           "One id of a row, by temperature, top_k, top_p and min_p and a uniform number in [0, 1).")
      .def(
          "logits",
          [](BoundSession& session, std::int64_t row) {
            std::vector<float> values;
            {
              nb::gil_scoped_release release;
              values = session.logits(row);
            }
            return nb::bytes(values.data(), values.size() * sizeof(float));
          },
          "row"_a = -1, "One row of raw logits: vocab_size floats in the machine's byte order.");
}

}  // namespace pocket
