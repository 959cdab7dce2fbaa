// Memory of devices: buffers, copies, and the reference device's, which host code cannot touch.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "device_tensor.h"

using namespace pocket;

namespace {

using bench::DeviceBench;

// The signal that a child process ends by when it runs the body; 0 when it ends well.
int signal_of(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would report it
    body();
    _exit(0);
  }
  int status = 0;
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

std::vector<float> counted(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

template <class Body>
Error error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  throw std::runtime_error("no error was thrown");
}

}  // namespace

TEST(memory_is_zero_and_comes_back_as_it_was_written) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name);
    Context& context = device.context();
    for (const std::size_t count : {1u, 1000u, 700000u}) {
      DeviceBuffer buffer(context.device, count * sizeof(float));
      std::vector<float> read(count, 5.0f);
      copy_to_host(context, std::as_const(buffer).as<float>(), std::span(read));
      for (const float value : read) CHECK_EQUAL(value, 0.0f);
      const std::vector<float> written = counted(count);
      copy_from_host(context, std::span(written), buffer.as<float>());
      copy_to_host(context, std::as_const(buffer).as<float>(), std::span(read));
      CHECK(read == written);
      DeviceBuffer other(context.device, buffer.size());
      context.device.copy(context.stream.get(), buffer.data(), other.data(), buffer.size());
      context.device.zero(context.stream.get(), buffer.data(), buffer.size());
      Buffer staging;
      const std::span<const float> seen = read_back(context, std::as_const(other).as<float>(), count, staging);
      CHECK(std::equal(seen.begin(), seen.end(), written.begin()));
      copy_to_host(context, std::as_const(buffer).as<float>(), std::span(read));
      for (const float value : read) CHECK_EQUAL(value, 0.0f);
    }
  });
}

TEST(buffers_move_and_grow) {
  bench::on_each_device([](const std::string& name) {
    DeviceBench device(name);
    DeviceBuffer buffer;
    CHECK(buffer.device() == nullptr && buffer.size() == 0);
    float* first = buffer.reserve<float>(device.context().device, 100);
    CHECK(buffer.reserve<float>(device.context().device, 50) == first);
    CHECK_EQUAL(buffer.size(), 400u);
    DeviceBuffer moved = std::move(buffer);
    CHECK(moved.as<float>() == first && buffer.data() == nullptr);
    moved.reserve<float>(device.context().device, 1000);
    CHECK_EQUAL(moved.size(), 4000u);
    // Memory of another device does not serve.
    DeviceBench cpu("cpu"), reference("reference");
    moved.reserve<float>(cpu.context().device, 10);
    CHECK(moved.device() == &cpu.context().device);
    moved.reserve<float>(reference.context().device, 10);
    CHECK(moved.device() == &reference.context().device);
  });
}

TEST(host_memory_is_read_in_place_where_the_device_sees_it) {
  const std::vector<float> values = counted(10);
  const auto bytes = std::as_bytes(std::span(values));
  bench::on_each_device([&](const std::string& name) {
    DeviceBench device(name);
    Context& context = device.context();
    const DeviceBuffer mapped = DeviceBuffer::mapped(context.device, context.stream.get(), bytes);
    CHECK_EQUAL(mapped.data() == bytes.data(), context.device.host_visible());
    Buffer staging;
    const std::span<const float> seen = read_back(context, mapped.as<float>(), 10, staging);
    CHECK(std::equal(seen.begin(), seen.end(), values.begin()));
  });
}

TEST(a_device_that_is_not_known_is_refused) {
  ThreadPool threads(1);
  const Error error = error_of([&] { open_device("abacus", threads); });
  CHECK(error.kind() == ErrorKind::kUnsupportedFeature);
  CHECK_EQUAL(error.param(), std::string("device"));
  CHECK(std::string(error.what()).find("cpu, reference") != std::string::npos);
}

TEST(host_code_that_touches_the_reference_devices_memory_ends_by_a_signal) {
  DeviceBench device("reference");
  auto tensor = device.output(counted(100));
  volatile float* touched = tensor.data();
  CHECK_EQUAL(signal_of([] {}), 0);
  CHECK_EQUAL(signal_of([&] { static_cast<void>(touched[0]); }), SIGSEGV);
  CHECK_EQUAL(signal_of([&] { touched[99] = 3.0f; }), SIGSEGV);
  // Between operations and after them; while the same through an operation works.
  scale_rows(device.context(), 100, 2.0f, tensor);
  CHECK_EQUAL(signal_of([&] { static_cast<void>(touched[50]); }), SIGSEGV);
  CHECK_EQUAL(tensor.values()[50], 102.0f);
}

TEST(the_reference_device_refuses_what_is_not_its_own) {
  DeviceBench device("reference");
  Context& context = device.context();
  std::vector<float> host = counted(10);
  DeviceBuffer buffer(context.device, 10 * sizeof(float));
  float* data = buffer.as<float>();
  const auto refused = [&](std::int64_t count, float* x) {
    return error_of([&] { scale_rows(context, count, 2.0f, x); }).kind() == ErrorKind::kEngine;
  };
  scale_rows(context, 10, 2.0f, data);
  CHECK(refused(10, host.data()));
  CHECK(refused(11, data));
  CHECK(refused(10, data + 1));
  CHECK(refused(1, data - 1));
  buffer = {};
  CHECK(refused(1, data));
}
