# The device layer that POCKET_BACKEND names. cpu is always built; the others are folders under csrc/kernels that say
# in a README what they hold and what their build needs.
if(POCKET_BACKEND STREQUAL "cpu")
elseif(POCKET_BACKEND STREQUAL "cuda")
  message(FATAL_ERROR
    "POCKET_BACKEND=cuda: this version has no CUDA kernels yet (csrc/kernels/cuda/README.md). "
    "Configure with -DPOCKET_BACKEND=cpu.")
elseif(POCKET_BACKEND STREQUAL "ascend")
  message(FATAL_ERROR
    "POCKET_BACKEND=ascend: this version has no Ascend kernels yet (csrc/kernels/ascend/README.md). "
    "Configure with -DPOCKET_BACKEND=cpu.")
else()
  message(FATAL_ERROR "POCKET_BACKEND=${POCKET_BACKEND}: choose cpu, cuda or ascend.")
endif()
