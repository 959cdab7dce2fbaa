"""Which implementation is taken, what is said about it, and that each computes what its operation's reference does."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from pocketllm_torch.kernels.rms_norm import reference
from pocketllm_torch.kernels.selection import OPERATIONS, Implementation, reasons, select
from tests.torch.driving import Driver
from tests.torch.tiny_llama import TinyLlama

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_last_implementation_serves_everything(operation: str) -> None:
    for device in (CPU, CUDA):
        for dtype in DTYPES:
            assert OPERATIONS[operation][-1].refusal(device, dtype) is None


def test_what_was_passed_over_is_said() -> None:
    assert (
        select("rms_norm", CPU, torch.float32).reason == "five PyTorch operations (not Triton: it needs a CUDA device)"
    )
    assert select("rms_norm", CPU, torch.bfloat16).reason == (
        "PyTorch reference (not Triton: it needs a CUDA device; not five PyTorch operations: it needs float32)"
    )


@pytest.mark.parametrize("found", [True, False])
def test_triton_is_taken_on_cuda_where_it_is_installed(found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if found else None)
    selection = select("rms_norm", CUDA, torch.bfloat16)
    assert selection.implementation.name == ("Triton" if found else "PyTorch reference")
    assert found or ("Triton", "triton is not installed") in selection.passed_over


def test_the_engine_reports_what_it_took(tiny: TinyLlama) -> None:
    with Driver.open(tiny.path, dtype="float32") as driver:
        kernels = driver.engine.pocketllm_capabilities().details["kernels"]
    assert kernels == {"linear": "float32, not packed", **reasons(CPU, torch.float32)}


NORMS = [
    pytest.param(implementation, dtype, id=f"{implementation.name}, {dtype}")
    for implementation in OPERATIONS["rms_norm"]
    for dtype in DTYPES
    if implementation.refusal(CPU, dtype) is None
]


@pytest.mark.parametrize("implementation, dtype", NORMS)
@pytest.mark.parametrize("rows, width", [(1, 1), (3, 63), (2, 64), (5, 576), (0, 8)])
def test_every_norm_that_runs_here_equals_the_reference(
    implementation: Implementation, dtype: torch.dtype, rows: int, width: int
) -> None:
    generator = torch.Generator().manual_seed(width)
    x = (torch.randn((rows, width), generator=generator) * 3).to(dtype)
    weight = torch.randn(width, generator=generator).to(dtype)
    expected = reference.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(implementation.callable(x, weight, 1e-5), expected, rtol=1e-5, atol=1e-5)
