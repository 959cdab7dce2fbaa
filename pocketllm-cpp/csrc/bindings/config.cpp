#include "models/config.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/init.h"
#include "core/dtype.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pocket {

void init_config(nb::module_& module) {
  module.def("families", &family_names, "The model_type of every family this build has.");
  module.def("check_config", [](const std::string& config) { static_cast<void>(read_model_config(config)); }, "config"_a,
             "Reads the text of a config.json. Raises ConfigurationError, CheckpointError or UnsupportedFeatureError, with the "
             "field's name, for one that this build cannot run. Milliseconds; any thread.");
  module.def("reads_dtype", [](const std::string& name) { return dtype_named(name).has_value(); }, "name"_a,
             "Whether stored tensors of that type are read; names as GGUF (\"Q4_K\") and safetensors (\"BF16\") have them.");
}

}  // namespace pocket
