"""RMSNorm as the models call it: the Triton kernel on CUDA, plain PyTorch elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pocketllm_torch.kernels.rms_norm import reference

NormFunction = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


class RMSNorm:
    """y = weight * x / rms(x) over the last dimension of x [T, H] or [T, heads, H]."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self._function = norm_function(weight.device, weight.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 2:
            return self._function(x, self.weight, self.eps)
        return self._function(x.reshape(-1, x.shape[-1]), self.weight, self.eps).view(x.shape)


def norm_function(device: torch.device, dtype: torch.dtype) -> NormFunction:
    """The implementation for a device and dtype."""
    if device.type == "cuda":
        from pocketllm_torch.kernels.rms_norm.kernel import rms_norm

        return rms_norm
    return _rms_norm_float32 if dtype is torch.float32 else reference.rms_norm


def _rms_norm_float32(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The reference in five operations: in a decoding step their number is what costs."""
    squares = torch.linalg.vecdot(x, x).unsqueeze_(-1)
    scale = torch.add(squares.new_full((1, 1), eps), squares, alpha=1.0 / x.shape[-1]).rsqrt_()
    return torch.mul(x, scale).mul_(weight)
