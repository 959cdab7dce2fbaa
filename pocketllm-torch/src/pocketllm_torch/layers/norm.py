"""RMSNorm as the models call it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pocketllm_torch.kernels.selection import select


class RMSNorm:
    """y = weight * x / rms(x) over the last dimension of x [T, H] or [T, heads, H]."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self._function: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor] = select(
            "rms_norm", weight.device, weight.dtype
        ).implementation.callable

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 2:
            return self._function(x, self.weight, self.eps)
        return self._function(x.reshape(-1, x.shape[-1]), self.weight, self.eps).view(x.shape)
