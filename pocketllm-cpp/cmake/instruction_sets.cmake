# The instruction sets of the CPU's kernels. What a set's code may use is also what dispatch.cpp asks the processor for:
# change both together.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(pocket_instruction_sets scalar avx2 avx512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(pocket_instruction_sets scalar neon)
else()
  set(pocket_instruction_sets scalar)
endif()

set(pocket_scalar_options)
set(pocket_avx2_options -mavx2 -mfma -mf16c -mbmi2)
set(pocket_avx512_options ${pocket_avx2_options} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi
  -mavx512bf16 -mprefer-vector-width=512
  # GCC before 13 takes the "undefined" operands inside its own AVX-512 intrinsics for mistakes (its bug 105593).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-maybe-uninitialized>)
set(pocket_neon_options -march=armv8.2-a+fp16+dotprod)

# Compiles the files of ARGN into `target` once for each instruction set. They find the set's vectors in
# POCKET_SIMD_HEADER, in the namespace POCKET_SIMD.
function(pocket_compile_per_instruction_set target)
  foreach(set IN LISTS pocket_instruction_sets)
    string(TOUPPER ${set} name)
    add_library(${target}_${set} OBJECT ${ARGN})
    target_link_libraries(${target}_${set} PRIVATE pocket_core)
    target_compile_options(${target}_${set} PRIVATE ${pocket_${set}_options})
    target_compile_definitions(${target}_${set} PRIVATE
      POCKET_SIMD=${set} POCKET_SIMD_${name} "POCKET_SIMD_HEADER=\"kernels/cpu/simd/${set}.h\"")
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${set}>)
    target_compile_definitions(${target} PUBLIC POCKET_WITH_${name})
  endforeach()
endfunction()
