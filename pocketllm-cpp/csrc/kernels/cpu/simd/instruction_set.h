// Which instruction set the kernels of this process use.
#pragma once

namespace pocket {

enum class InstructionSet { kScalar, kAvx2, kAvx512, kNeon };

// The best set that this build and this processor have, found once. The environment variable POCKET_INSTRUCTION_SET
// (scalar, avx2, avx512, neon) lowers it; a set that the processor lacks, or an unknown name, is ignored.
InstructionSet instruction_set_in_use() noexcept;

}  // namespace pocket
