"""Linear layers, one class per storage form. All map [T, in] to [T, out]; weights are [out, in]."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

LONG_ROWS = 128
"""From about this many rows on, arithmetic costs more than reading the weight."""


class Linear(Protocol):
    """A weight in one of its forms: [T, in] -> [T, out_features]."""

    out_features: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class DenseLinear:
    """The weight as it is, in the dtype of the activations."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features = weight.shape[0]
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)


class PackedHalfLinear:
    """float16 weight, packed once for FBGEMM; float32 activations, products and sums.

    Half the memory traffic of float32, and a rounding of the weights by at most 2^-11 as the only difference.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features = weight.shape[0]
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), None)
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return y if self._bias is None else y.add_(self._bias)


class WidenedHalfLinear:
    """float16 weight, widened to float32 in every call: as :class:`PackedHalfLinear`, where FBGEMM is missing."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features = weight.shape[0]
        self._weight = weight.half()
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight.float(), self._bias)


class PackedBFloat16Linear:
    """bfloat16 weight in oneDNN's blocked layout, so that it is not reordered in every call."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features = weight.shape[0]
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16().contiguous(), None)
        self._bias = None if bias is None else bias.bfloat16()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y


class TwoFormLinear:
    """One weight in two forms: ``short`` for few rows, ``long`` from :data:`LONG_ROWS` rows on.

    Few rows are bound by reading the weight, many by arithmetic, and no storage form is best at both.
    """

    def __init__(self, short: Linear, long: Linear) -> None:
        self.out_features = short.out_features
        self._short = short
        self._long = long

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._short(x) if x.shape[0] < LONG_ROWS else self._long(x)


class RoundedLinear:
    """A bfloat16 layer between float32 activations."""

    def __init__(self, inner: Linear) -> None:
        self.out_features = inner.out_features
        self._inner = inner

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._inner(x.bfloat16()).float()
