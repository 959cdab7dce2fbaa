"""How weights are stored and computed with on a device: the meaning of ``dtype``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm_torch.layers.linear import (
    DenseLinear,
    Linear,
    PackedBFloat16Linear,
    PackedHalfLinear,
    RoundedLinear,
    TwoFormLinear,
    can_pack_bfloat16,
    can_pack_half,
)

DTYPE_NAMES = {
    "auto": "auto",
    "float32": "float32",
    "fp32": "float32",
    "float": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "half": "float16",
}


LinearForm = Callable[[torch.Tensor, torch.Tensor | None], Linear]
"""Makes a layer from a weight [out, in] in any dtype and a bias [out] in the compute dtype."""


@dataclass(frozen=True)
class Precision:
    """Storage forms for matrices, and the dtype of activations, vectors and the cache."""

    name: str
    device: torch.device
    storage_dtype: torch.dtype
    compute_dtype: torch.dtype
    linear_form: LinearForm
    long_form: LinearForm | None = None
    """A second copy of each matrix for long chunks, where one pays."""
    long_name: str | None = None

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None, *, long_chunks: bool = True) -> Linear:
        """A layer of ``weight`` [out, in] and ``bias`` [out] in the storage form.

        Args:
            long_chunks: False for a layer that only ever sees a few rows.
        """
        self._check_range(weight)
        bias = None if bias is None else self.vector(bias)
        layer = self.linear_form(weight, bias)
        if self.long_form is None or not long_chunks:
            return layer
        return TwoFormLinear(layer, self.long_form(weight, bias))

    def table(self, weight: torch.Tensor) -> torch.Tensor:
        """An embedding table; rows are widened to the compute dtype after the look-up."""
        return weight.to(device=self.device, dtype=self.storage_dtype)

    def vector(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.to(device=self.device, dtype=self.compute_dtype)

    def _check_range(self, weight: torch.Tensor) -> None:
        if self.storage_dtype is not torch.float16 or weight.dtype is torch.float16:
            return
        low, high = weight.aminmax()
        if max(-float(low), float(high)) > torch.finfo(torch.float16).max:
            raise UnsupportedFeatureError(
                "A weight of this checkpoint is outside float16's range: open it with dtype = 'float32' or 'bfloat16'.",
                param="dtype",
            )


def choose_precision(name: str | None, device: torch.device, long_chunks: str = "float16") -> Precision:
    """The precision for a ``dtype`` argument; None and "auto" give the default of the device.

    On a CPU "auto" is float16 weights with float32 activations and arithmetic, or float32 where the CPU cannot do that;
    on CUDA it is bfloat16.

    Args:
        long_chunks: with float16 on a CPU, the dtype in which chunks of many tokens are multiplied: "float16" (no
            second copy of the weights), "float32" or "bfloat16".

    Raises:
        ConfigurationError: an unknown name.
        UnsupportedFeatureError: this machine cannot compute so.
    """
    wanted = DTYPE_NAMES.get((name or "auto").lower())
    if wanted is None:
        raise ConfigurationError(
            f"dtype = {name!r} is not known; give one of {', '.join(sorted(set(DTYPE_NAMES.values())))}.", param="dtype"
        )
    if device.type != "cpu":
        dtype = torch.bfloat16 if wanted == "auto" else getattr(torch, wanted)
        return _dense(device, dtype)
    if wanted == "auto":
        wanted = "float16" if can_pack_half() else "float32"
    if wanted == "float16":
        return _packed_half(device, long_chunks)
    if wanted == "bfloat16" and can_pack_bfloat16():
        return Precision("bfloat16", device, torch.bfloat16, torch.bfloat16, PackedBFloat16Linear)
    return _dense(device, getattr(torch, wanted))


def _packed_half(device: torch.device, long_chunks: str) -> Precision:
    if not can_pack_half():
        raise UnsupportedFeatureError(
            "dtype = 'float16' on a CPU needs a torch build with FBGEMM: use 'float32' or 'bfloat16'.", param="dtype"
        )
    long_forms: dict[str, LinearForm | None] = {
        "float16": None,
        "float32": lambda weight, bias: DenseLinear(weight.float(), bias),
        "bfloat16": lambda weight, bias: RoundedLinear(PackedBFloat16Linear(weight, bias)),
    }
    return Precision(
        "float16", device, torch.float16, torch.float32, PackedHalfLinear, long_forms[long_chunks], long_chunks
    )


def _dense(device: torch.device, dtype: torch.dtype) -> Precision:
    def linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return DenseLinear(weight.to(device=device, dtype=dtype), bias)

    return Precision(str(dtype).removeprefix("torch."), device, dtype, dtype, linear)
