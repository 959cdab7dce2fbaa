// pocket::Error becomes the class of core that has its kind's name.
#include "core/error.h"

#include <exception>

#include "bindings/init.h"

namespace nb = nanobind;

namespace pocket {
namespace {

const char* class_name(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::kCheckpoint:
      return "CheckpointError";
    case ErrorKind::kConfiguration:
      return "ConfigurationError";
    case ErrorKind::kUnsupportedFeature:
      return "UnsupportedFeatureError";
    case ErrorKind::kEngine:
      break;
  }
  return "EngineError";
}

void raise_in_python(const Error& error) {
  try {
    nb::object cls = nb::module_::import_("pocketllm.errors").attr(class_name(error.kind()));
    nb::object param = error.param().empty() ? nb::none() : nb::object(nb::str(error.param().c_str()));
    nb::object raised = cls(nb::str(error.what()), nb::arg("param") = param);
    PyErr_SetObject(cls.ptr(), raised.ptr());
  } catch (nb::python_error& failure) {
    // Core is not there, as in a build tree used by itself.
    failure.restore();
    PyErr_Clear();
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

}  // namespace

void init_error(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      raise_in_python(error);
    }
  });
}

}  // namespace pocket
