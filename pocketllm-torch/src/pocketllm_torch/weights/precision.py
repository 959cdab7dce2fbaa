"""How weights are stored and computed with on a device: the meaning of ``dtype``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm_torch.layers.linear import Linear, TwoFormLinear
from pocketllm_torch.layers.linear_forms import (
    LinearForm,
    bfloat16_form,
    dense_form,
    dtype_name,
    half_form,
    rounded_form,
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

    @property
    def linear_name(self) -> str:
        """The storage forms in words, with the reason where a faster one is missing."""
        forms = (self.linear_form,) if self.long_form is None else (self.linear_form, self.long_form)
        return "; long chunks: ".join(
            form.name if form.missing is None else f"{form.name} ({form.missing})" for form in forms
        )

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None, *, long_chunks: bool = True) -> Linear:
        """A layer of ``weight`` [out, in] and ``bias`` [out] in the storage form.

        Args:
            long_chunks: False for a layer that only ever sees a few rows.
        """
        self._check_range(weight)
        bias = None if bias is None else self.vector(bias)
        layer = self.linear_form.make(weight, bias)
        if self.long_form is None or not long_chunks:
            return layer
        return TwoFormLinear(layer, self.long_form.make(weight, bias))

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

    On a CPU "auto" is float16 weights with float32 activations and arithmetic, or float32 where the packed form of that
    is missing; on CUDA it is bfloat16. A dtype that is asked for by name is computed in on every machine: where its
    packed form is missing, by the plain product, which :attr:`LinearForm.missing` explains.

    Args:
        long_chunks: with float16 on a CPU, the dtype in which chunks of many tokens are multiplied: "float16" (no
            second copy of the weights), "float32" or "bfloat16".

    Raises:
        ConfigurationError: an unknown name.
    """
    wanted = DTYPE_NAMES.get((name or "auto").lower())
    if wanted is None:
        raise ConfigurationError(
            f"dtype = {name!r} is not known; give one of {', '.join(sorted(set(DTYPE_NAMES.values())))}.", param="dtype"
        )
    if device.type != "cpu":
        return _dense(device, torch.bfloat16 if wanted == "auto" else getattr(torch, wanted))
    if wanted == "bfloat16":
        return Precision("bfloat16", device, torch.bfloat16, torch.bfloat16, bfloat16_form())
    if wanted == "float32":
        return _dense(device, torch.float32)
    half = half_form()
    if wanted == "auto" and half.missing is not None:
        return _dense(device, torch.float32, half.missing)
    return Precision(
        "float16", device, torch.float16, torch.float32, half, _long_form(long_chunks, device), long_chunks
    )


def _long_form(dtype: str, device: torch.device) -> LinearForm | None:
    if dtype == "float16":
        return None
    return rounded_form() if dtype == "bfloat16" else dense_form(torch.float32, device)


def _dense(device: torch.device, dtype: torch.dtype, missing: str | None = None) -> Precision:
    return Precision(dtype_name(dtype), device, dtype, dtype, dense_form(dtype, device, missing))
