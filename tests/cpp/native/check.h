// The smallest test harness that serves: TEST(name) { CHECK(...); } and one main() per program (check_main.cpp).
#pragma once

#include <cmath>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace check {

struct Case {
  std::string name;
  std::function<void()> body;
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Registration {
  Registration(const char* name, std::function<void()> body) { cases().push_back({name, std::move(body)}); }
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::ostringstream text;
  text << file << ":" << line << ": " << what;
  throw std::runtime_error(text.str());
}

template <class A, class B>
void equal(const char* file, int line, const char* expression, const A& a, const B& b) {
  if (a == b) return;
  std::ostringstream text;
  text << expression << ": " << a << " is not " << b;
  fail(file, line, text.str());
}

inline void close(const char* file, int line, const char* expression, double a, double b, double tolerance) {
  if (std::abs(a - b) <= tolerance) return;  // false for NaN
  std::ostringstream text;
  text << expression << ": " << a << " is not within " << tolerance << " of " << b;
  fail(file, line, text.str());
}

}  // namespace check

#define TEST(name)                                                      \
  static void test_##name();                                            \
  static const check::Registration registration_##name(#name, test_##name); \
  static void test_##name()

#define CHECK(condition)                                             \
  do {                                                               \
    if (!(condition)) check::fail(__FILE__, __LINE__, #condition);   \
  } while (false)
#define CHECK_EQUAL(a, b) check::equal(__FILE__, __LINE__, #a " == " #b, (a), (b))
#define CHECK_CLOSE(a, b, tolerance) check::close(__FILE__, __LINE__, #a " ~ " #b, (a), (b), (tolerance))
#define CHECK_THROWS(type, statement)                                                \
  do {                                                                               \
    bool thrown = false;                                                             \
    try {                                                                            \
      statement;                                                                     \
    } catch (const type&) {                                                          \
      thrown = true;                                                                 \
    }                                                                                \
    if (!thrown) check::fail(__FILE__, __LINE__, #statement " did not throw " #type); \
  } while (false)
