// The parts of the Python module, one per header of the engine.
#pragma once

#include <nanobind/nanobind.h>

namespace pocket {

void init_error(nanobind::module_& module);
void init_config(nanobind::module_& module);
void init_model(nanobind::module_& module);
void init_runtime(nanobind::module_& module);
void init_session(nanobind::module_& module);
void init_request(nanobind::module_& module);
void init_engine(nanobind::module_& module);
void init_grammar(nanobind::module_& module);

}  // namespace pocket
