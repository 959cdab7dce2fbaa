"""The RMSNorm kernel: against its reference in Triton's interpreter, and compiled for every supported architecture.

Both need a fresh process: the interpreter is chosen when the kernel is defined, and Triton caches what it compiles.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pocketllm_torch.kernels.rms_norm.reference import rms_norm
from pocketllm_torch.layers.norm import RMSNorm

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

INTERPRET = """
import torch
from pocketllm_torch.kernels.rms_norm import kernel, reference

generator = torch.Generator().manual_seed(0)
for dtype, tolerance in ((torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
    for rows, width in ((1, 1), (3, 63), (2, 64), (5, 75), (1, 576)):
        # A row stride larger than the row, as in a slice of a wider tensor; what lies between must not be read.
        wide = torch.full((rows, width + 3), float("nan"), dtype=dtype)
        x = wide[:, :width]
        x.copy_(torch.randn((rows, width), generator=generator) * 3)
        weight = torch.randn(width, generator=generator).to(dtype)
        y = kernel.rms_norm(x, weight, 1e-5)
        expected = reference.rms_norm(x, weight, 1e-5)
        assert y.dtype == dtype and y.shape == expected.shape
        error = (y.float() - expected.float()).abs().max().item()
        assert error <= tolerance * max(1.0, expected.float().abs().max().item()), (dtype, rows, width, error)
assert kernel.rms_norm(torch.empty(0, 8), torch.ones(8), 1e-5).shape == (0, 8)
try:
    kernel.rms_norm(torch.empty(8, 4).t(), torch.ones(8), 1e-5)
except ValueError as error:
    assert "contiguous rows" in str(error)
else:
    raise AssertionError("a transposed input was accepted")
print("equal")
"""

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pocketllm_torch.kernels.rms_norm.kernel import rms_norm_kernel

names = rms_norm_kernel.arg_names
for arch in (80, 90, 100):
    for element in ("fp32", "fp16", "bf16"):
        types = {"x": "*" + element, "weight": "*" + element, "y": "*" + element}
        types |= {"stride": "i32", "width": "i32", "eps": "fp32", "BLOCK": "constexpr"}
        source = ASTSource(
            fn=rms_norm_kernel,
            signature={name: types[name] for name in names},
            constexprs={(names.index("BLOCK"),): 1024},
        )
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4})
        assert f".target sm_{arch}" in compiled.asm["ptx"], compiled.asm["ptx"][:200]
        assert len(compiled.asm["cubin"]) > 1000
        assert compiled.metadata.shared <= 48 * 1024
print("compiled")
"""


def run(script: str, tmp_path: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", script],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip()


@needs_triton
def test_interpreted_kernel_equals_the_reference(tmp_path: Path) -> None:
    # The interpreter works on script text, so the kernel must come from a file; it does.
    assert run(INTERPRET, tmp_path, TRITON_INTERPRET="1") == "equal"


@needs_triton
def test_compiles_ahead_of_time_without_a_gpu(tmp_path: Path) -> None:
    assert run(COMPILE, tmp_path) == "compiled"


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 1e-7)])
@pytest.mark.parametrize("rows, width", [(1, 576), (7, 63), (0, 5)])
def test_the_layer_on_a_cpu_equals_the_reference(dtype: torch.dtype, tolerance: float, rows: int, width: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn((rows, width), generator=generator) * 5).to(dtype)
    weight = torch.randn(width, generator=generator).to(dtype)
    before = x.clone()
    y = RMSNorm(weight, 1e-5)(x)
    torch.testing.assert_close(y, rms_norm(x, weight, 1e-5), rtol=tolerance, atol=tolerance * 10)
    assert torch.equal(x, before)


def test_the_reference_is_the_formula() -> None:
    x = torch.tensor([[3.0, -4.0]])
    scale = (12.5 + 0.5) ** -0.5
    expected = torch.tensor([[3.0 * scale * 2.0, -4.0 * scale * 10.0]])
    torch.testing.assert_close(rms_norm(x, torch.tensor([2.0, 10.0]), 0.5), expected)
