#include "models/model.h"

#include <nanobind/stl/string.h>

#include "bindings/init.h"
#include "kernels/linear.h"

namespace nb = nanobind;

namespace pocket {

void init_model(nb::module_& module) {
  module.attr("backend") = POCKET_BACKEND_NAME;
  module.def("instruction_set", []() { return std::string(instruction_set()); },
             "What the products run on here: \"scalar\", \"avx2\", \"avx512\" or \"neon\".");
}

}  // namespace pocket
