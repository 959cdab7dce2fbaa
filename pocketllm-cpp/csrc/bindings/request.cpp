#include "engine/request.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bindings/init.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pocket {

void init_request(nb::module_& module) {
  nb::class_<SamplingParams>(module, "SamplingParams", "How a request is sampled. A value: submit() copies it. Core has checked the ranges, which are not checked again.")
      .def(nb::init<>())
      .def_rw("temperature", &SamplingParams::temperature,
              "At most 1e-5: greedy.")
      .def_rw("top_p", &SamplingParams::top_p,
              "Above 0 and at most 1, which is off.")
      .def_rw("top_k", &SamplingParams::top_k,
              "0: no limit.")
      .def_rw("min_p", &SamplingParams::min_p,
              "From 0, which is off, to 1: tokens less likely than this share of the likeliest are left out.")
      .def_rw("repetition_penalty", &SamplingParams::repetition_penalty,
              "Above 0; 1 is off. Acts on tokens of the prompt and the answer.")
      .def_rw("frequency_penalty", &SamplingParams::frequency_penalty,
              "Taken from a logit for every time the answer has the token; 0 is off.")
      .def_rw("presence_penalty", &SamplingParams::presence_penalty,
              "Taken from the logit of a token that the answer has; 0 is off.")
      .def_rw("logit_bias", &SamplingParams::logit_bias,
              "(token id, what is added to its logit) pairs.")
      .def_rw("max_tokens", &SamplingParams::max_tokens,
              "Tokens of the answer, 1 or more, the prompt and they together at most the context.")
      .def_rw("min_tokens", &SamplingParams::min_tokens,
              "No stop id is drawn before this many tokens.")
      .def_rw("logprobs", &SamplingParams::logprobs,
              "Report natural-log probabilities of drawn tokens.")
      .def_rw("num_top_logprobs", &SamplingParams::num_top_logprobs,
              "The likeliest tokens to report beside each drawn one.")
      .def_rw("prompt_logprobs", &SamplingParams::prompt_logprobs,
              "Report the prompt's natural-log probabilities too.");
}

}  // namespace pocket
