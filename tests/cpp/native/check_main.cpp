// Runs every TEST linked into the program, or those whose names contain an argument; exit code 1 when one fails.
#include <cstdio>
#include <cstring>
#include <exception>

#include "check.h"

int main(int argc, char** argv) {
  int num_run = 0;
  int num_failed = 0;
  for (const check::Case& test : check::cases()) {
    bool wanted = argc < 2;
    for (int index = 1; index < argc; ++index) wanted = wanted || test.name.find(argv[index]) != std::string::npos;
    if (!wanted) continue;
    ++num_run;
    try {
      test.body();
    } catch (const std::exception& error) {
      ++num_failed;
      std::printf("FAILED %s: %s\n", test.name.c_str(), error.what());
    }
  }
  std::printf("%d run, %d failed\n", num_run, num_failed);
  return num_run == 0 || num_failed != 0 ? 1 : 0;
}
