// The devices that this build can run on, by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/context.h"

namespace pocket {

std::vector<std::string> device_names();

// A context on the named device. Throws Error(kUnsupportedFeature, param = "device") for a name that is not known.
Context open_device(std::string_view name, ThreadPool& threads);

}  // namespace pocket
