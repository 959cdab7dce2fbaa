"""Which implementation of an operation is taken for a device and a dtype, and why not a faster one."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Refusal = Callable[[torch.device, torch.dtype], str | None]
"""Why an implementation does not serve a device and the dtype of its inputs; None when it does."""


@dataclass(frozen=True)
class Implementation:
    """A function of a module in this package; ``name`` is for people."""

    name: str
    module: str
    function: str
    refusal: Refusal

    @property
    def callable(self) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(importlib.import_module(f"{__package__}.{self.module}"), self.function)
        return function


@dataclass(frozen=True)
class Selection:
    """What is taken, and why the faster ones before it are not."""

    implementation: Implementation
    passed_over: tuple[tuple[str, str], ...]

    @property
    def reason(self) -> str:
        """In words, as in "PyTorch (not Triton: it needs a CUDA device)"."""
        name = self.implementation.name
        if not self.passed_over:
            return name
        return f"{name} ({'; '.join(f'not {other}: {why}' for other, why in self.passed_over)})"


def _anywhere(device: torch.device, dtype: torch.dtype) -> str | None:
    return None


def _triton(device: torch.device, dtype: torch.dtype) -> str | None:
    if device.type != "cuda":
        return "it needs a CUDA device"
    return None if importlib.util.find_spec("triton") is not None else "triton is not installed"


def _float32(device: torch.device, dtype: torch.dtype) -> str | None:
    return None if dtype is torch.float32 else "it needs float32"


# Fastest first. The last one serves every device and dtype.
OPERATIONS: dict[str, tuple[Implementation, ...]] = {
    "rms_norm": (
        Implementation("Triton", "rms_norm.kernel", "rms_norm", _triton),
        Implementation("five PyTorch operations", "rms_norm.float32", "rms_norm", _float32),
        Implementation("PyTorch reference", "rms_norm.reference", "rms_norm", _anywhere),
    ),
    "delta_rule_single": (Implementation("PyTorch", "delta_net.single", "delta_rule", _anywhere),),
    "delta_rule_span": (Implementation("PyTorch, segments of 64", "delta_net.segments", "delta_rule", _anywhere),),
}


def select(operation: str, device: torch.device, dtype: torch.dtype) -> Selection:
    """The fastest implementation that serves ``device`` and ``dtype``."""
    passed_over: list[tuple[str, str]] = []
    for implementation in OPERATIONS[operation]:
        why = implementation.refusal(device, dtype)
        if why is None:
            return Selection(implementation, tuple(passed_over))
        passed_over.append((implementation.name, why))
    raise LookupError(f"{operation} is not implemented for {dtype} on {device}")


def reasons(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """What is taken for each operation, in words."""
    return {operation: select(operation, device, dtype).reason for operation in OPERATIONS}
