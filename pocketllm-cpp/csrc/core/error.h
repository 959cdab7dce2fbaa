// Errors that cross the boundary to callers. Each kind becomes the Python class of the same name.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace pocket {

enum class ErrorKind {
  kCheckpoint,          // a file is missing, malformed or not what it claims to be
  kConfiguration,       // an argument has a value that cannot be served
  kUnsupportedFeature,  // valid, but not in this build or family
  kEngine,              // the engine itself failed
};

// The message names the field or file, the value and the next step.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::string param = {})
      : std::runtime_error(message), kind_(kind), param_(std::move(param)) {}

  ErrorKind kind() const noexcept { return kind_; }
  // The request or configuration field at fault; empty when there is none.
  const std::string& param() const noexcept { return param_; }

 private:
  ErrorKind kind_;
  std::string param_;
};

}  // namespace pocket
