// What a reader refuses, and for the reason that was meant.
#pragma once

#include <string>

#include "check.h"
#include "core/error.h"

// Runs `body`, which must throw an Error of that kind whose message has `reason` in it; fails the test otherwise.
template <class Body>
bool refuses(const Body& body, const std::string& reason, pocket::ErrorKind kind = pocket::ErrorKind::kCheckpoint) {
  try {
    body();
  } catch (const pocket::Error& error) {
    if (error.kind() == kind && std::string(error.what()).find(reason) != std::string::npos) return true;
    check::fail(__FILE__, __LINE__, "wrong reason, wanted '" + reason + "': " + error.what());
  }
  check::fail(__FILE__, __LINE__, "accepted where this was wrong: " + reason);
}
