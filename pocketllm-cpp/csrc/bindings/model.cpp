#include "models/model.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/init.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/devices.h"

namespace nb = nanobind;

namespace pocket {

void init_model(nb::module_& module) {
  module.attr("backend") = POCKET_BACKEND_NAME;
  module.def("devices", []() { return device_names(); }, "The devices that this build can run on.");
  module.def("instruction_set", []() { return std::string(cpu::instruction_set()); },
             "What the products run on here: \"scalar\", \"avx2\", \"avx512\" or \"neon\".");
}

}  // namespace pocket
