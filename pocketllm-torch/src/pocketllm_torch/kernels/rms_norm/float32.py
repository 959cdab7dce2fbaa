"""RMSNorm in float32 on a CPU."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The reference in five operations: in a decoding step their number is what costs."""
    squares = torch.linalg.vecdot(x, x).unsqueeze_(-1)
    scale = torch.add(squares.new_full((1, 1), eps), squares, alpha=1.0 / x.shape[-1]).rsqrt_()
    return torch.mul(x, scale).mul_(weight)
