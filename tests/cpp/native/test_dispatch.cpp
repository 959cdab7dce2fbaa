// Which instruction set is in use, and what POCKET_INSTRUCTION_SET does.
#include "kernels/cpu/simd/dispatch.h"

#include <cstdlib>
#include <string>

#include "check.h"
#include "core/error.h"
#include "kernels/cpu/attention/kernels.h"
#include "kernels/cpu/linear/kernels.h"
#include "kernels/devices.h"

using namespace pocket;
using namespace pocket::cpu;

namespace {

constexpr const char* kVariable = "POCKET_INSTRUCTION_SET";

std::string refusal(const char* value) {
  setenv(kVariable, value, 1);
  ThreadPool threads(1);
  try {
    open_device("cpu", threads);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kConfiguration);
    CHECK_EQUAL(error.param(), std::string(kVariable));
    return error.what();
  }
  return "";
}

}  // namespace

// The set is found once in a process: this test has to be the first.
TEST(a_cpu_is_not_opened_with_a_set_that_is_not_there_and_the_error_names_the_sets) {
#if defined(__x86_64__)
  const char* of_another_processor = "neon";
#else
  const char* of_another_processor = "avx2";
#endif
  for (const char* value : {"sse9", "AVX2", of_another_processor}) {
    const std::string message = refusal(value);
    CHECK(message.find(kVariable) != std::string::npos);
    CHECK(message.find('"' + std::string(value) + '"') != std::string::npos);
    for (const InstructionSet set : instruction_sets()) CHECK(message.find(name_of(set)) != std::string::npos);
  }
  setenv(kVariable, "scalar", 1);
  CHECK(instruction_set_in_use() == InstructionSet::kScalar);
  CHECK(&kernels_in_use<AttentionKernelsOf>() == &kernels_for<AttentionKernelsOf>(InstructionSet::kScalar));
}

TEST(every_set_has_a_table_of_its_own) {
  const std::vector<InstructionSet> sets = instruction_sets();
  CHECK(sets.front() == InstructionSet::kScalar);
  for (const InstructionSet a : sets) {
    for (const InstructionSet b : sets) {
      const bool same = &kernels_for<LinearKernelsOf>(a) == &kernels_for<LinearKernelsOf>(b);
      CHECK_EQUAL(same, a == b);
    }
  }
}
