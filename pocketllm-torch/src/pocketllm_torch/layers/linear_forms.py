"""Which storage forms of a matrix this machine has. Found by running each once, not by the name of the processor.

A packed form that is missing is replaced by the plain product in the same dtype. That is slower and computes the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pocketllm_torch.layers.linear import (
    DenseLinear,
    Linear,
    PackedBFloat16Linear,
    PackedHalfLinear,
    RoundedLinear,
    WidenedHalfLinear,
)

MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]
"""Makes a layer from a weight [out, in] in any dtype and a bias [out] in the compute dtype."""


@dataclass(frozen=True)
class LinearForm:
    """One way to store and to multiply a matrix.

    ``name`` is for people. ``missing`` says why a faster form of the same dtype is not taken.
    """

    name: str
    make: MakeLinear
    missing: str | None = None


def dense_form(dtype: torch.dtype, device: torch.device, missing: str | None = None) -> LinearForm:
    """The weight as it is, in ``dtype`` on ``device``."""

    def make(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return DenseLinear(weight.to(device=device, dtype=dtype), bias)

    return LinearForm(f"{dtype_name(dtype)}, not packed", make, missing)


def half_form() -> LinearForm:
    """float16 weights on a CPU, with float32 activations."""
    missing = missing_packed_half()
    if missing is None:
        return LinearForm("float16, packed by FBGEMM", PackedHalfLinear)
    return LinearForm("float16, widened in every product", WidenedHalfLinear, missing)


def bfloat16_form() -> LinearForm:
    """bfloat16 weights on a CPU, with bfloat16 activations."""
    missing = missing_packed_bfloat16()
    if missing is None:
        return LinearForm("bfloat16, packed by oneDNN", PackedBFloat16Linear)
    return dense_form(torch.bfloat16, torch.device("cpu"), missing)


def rounded_form() -> LinearForm:
    """bfloat16 weights on a CPU, between float32 activations."""
    inner = bfloat16_form()
    return LinearForm(inner.name, lambda weight, bias: RoundedLinear(inner.make(weight, _narrow(bias))), inner.missing)


@functools.cache
def missing_packed_half() -> str | None:
    """Why :class:`PackedHalfLinear` does not run on this machine, or None when it does."""
    return _failure(PackedHalfLinear, torch.float32)


@functools.cache
def missing_packed_bfloat16() -> str | None:
    """Why :class:`PackedBFloat16Linear` does not run on this machine, or None when it does."""
    return _failure(PackedBFloat16Linear, torch.bfloat16)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _failure(make: MakeLinear, dtype: torch.dtype) -> str | None:
    # A build may lack the operator (AttributeError), and an operator the instructions that it needs (RuntimeError).
    try:
        make(torch.ones((8, 8)), None)(torch.ones((2, 8), dtype=dtype))
    except (AttributeError, RuntimeError) as error:
        return str(error).partition("\n")[0]
    return None


def _narrow(bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else bias.bfloat16()
