#include "core/device.h"

namespace pocket {

DeviceBuffer DeviceBuffer::copied(Device& device, DeviceStream* stream, std::span<const std::byte> bytes) {
  DeviceBuffer buffer(device, bytes.size());
  if (!bytes.empty()) device.copy_from_host(stream, bytes.data(), buffer.data(), bytes.size());
  return buffer;
}

DeviceBuffer DeviceBuffer::mapped(Device& device, DeviceStream* stream, std::span<const std::byte> bytes) {
  if (!device.host_visible()) return copied(device, stream, bytes);
  DeviceBuffer buffer;
  buffer.device_ = &device;
  buffer.data_ = const_cast<std::byte*>(bytes.data());  // read-only memory is mapped, and given out as const
  buffer.size_ = bytes.size();
  return buffer;
}

}  // namespace pocket
