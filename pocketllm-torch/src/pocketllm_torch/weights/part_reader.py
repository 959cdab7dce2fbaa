"""Reading the parts that layers are made of, in the storage form of a precision."""

from __future__ import annotations

import torch

from pocketllm_torch.layers.linear import Linear
from pocketllm_torch.layers.norm import RMSNorm
from pocketllm_torch.weights.precision import Precision
from pocketllm_torch.weights.reader import WeightReader


class PartReader:
    """Norms and linear layers of one model, by their Hugging Face names.

    Args:
        zero_centred_norms: norms multiply by 1 + weight. GGUF files have the 1 added already.
    """

    def __init__(self, weights: WeightReader, precision: Precision, *, eps: float, zero_centred_norms: bool) -> None:
        self.weights = weights
        self.precision = precision
        self.is_gguf = weights.format == "gguf"
        self._eps = eps
        self._adds_one = zero_centred_norms and not self.is_gguf

    def norm(self, name: str, size: int) -> RMSNorm:
        return RMSNorm(self.precision.vector(self.norm_weight(name, size)), self._eps)

    def norm_weight(self, name: str, size: int) -> torch.Tensor:
        """As the norm multiplies by it."""
        weight = self.weights.read(name, (size,))
        return weight.float() + 1.0 if self._adds_one else weight

    def linear(self, name: str, num_out: int, num_in: int) -> Linear:
        return self.precision.linear(self.weights.read(name, (num_out, num_in)), None)

    def joined(self, *parts: tuple[torch.Tensor, torch.Tensor | None]) -> Linear:
        """One layer of several weights and biases, whose output is the parts' outputs side by side."""
        weight = torch.cat([weight for weight, _ in parts]) if len(parts) > 1 else parts[0][0]
        bias = None
        if any(bias is not None for _, bias in parts):
            bias = torch.cat([bias if bias is not None else weight.new_zeros(len(weight)) for weight, bias in parts])
        return self.precision.linear(weight, bias)
