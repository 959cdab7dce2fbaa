#include "engine/request.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bindings/init.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pocket {

void init_request(nb::module_& module) {
  nb::class_<SamplingParams>(module, "SamplingParams", "As in csrc/engine/request.h; checked by core before.")
      .def(nb::init<>())
      .def_rw("temperature", &SamplingParams::temperature)
      .def_rw("top_p", &SamplingParams::top_p)
      .def_rw("top_k", &SamplingParams::top_k)
      .def_rw("min_p", &SamplingParams::min_p)
      .def_rw("repetition_penalty", &SamplingParams::repetition_penalty)
      .def_rw("frequency_penalty", &SamplingParams::frequency_penalty)
      .def_rw("presence_penalty", &SamplingParams::presence_penalty)
      .def_rw("logit_bias", &SamplingParams::logit_bias)
      .def_rw("max_tokens", &SamplingParams::max_tokens)
      .def_rw("min_tokens", &SamplingParams::min_tokens)
      .def_rw("logprobs", &SamplingParams::logprobs)
      .def_rw("num_top_logprobs", &SamplingParams::num_top_logprobs)
      .def_rw("prompt_logprobs", &SamplingParams::prompt_logprobs);
}

}  // namespace pocket
