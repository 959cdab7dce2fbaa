#include "kernels/devices.h"

#include "core/error.h"
#include "kernels/cpu/operations.h"
#include "kernels/reference/operations.h"

namespace pocket {
namespace {

struct Entry {
  std::string_view name;
  Context (*open)(ThreadPool& threads);
};

constexpr Entry kDevices[] = {
    {"cpu", cpu::open},
    {"reference", reference::open},
};

}  // namespace

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kDevices) names.emplace_back(entry.name);
  return names;
}

Context open_device(std::string_view name, ThreadPool& threads) {
  std::string known;
  for (const Entry& entry : kDevices) {
    if (entry.name == name) return entry.open(threads);
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw Error(ErrorKind::kUnsupportedFeature,
              "device = \"" + std::string(name) + "\" is not in this build: give one of " + known + ".", "device");
}

}  // namespace pocket
