"""The causal convolution before the delta rule."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def convolve(rows: torch.Tensor, tail: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """silu of the causal depthwise convolution of one sequence's rows.

    Args:
        rows: [T, C]; tail: [K - 1, C], the rows before; weight: [C, K], the last tap on the current row.

    Returns the result [T, C] and the new tail.
    """
    joined = torch.cat([tail, rows])
    length = rows.shape[0]
    total = joined[:length] * weight[:, 0]
    for tap in range(1, weight.shape[1]):
        total.addcmul_(joined[tap : tap + length], weight[:, tap])
    return F.silu(total), joined[length:]


def convolve_single(rows: torch.Tensor, tails: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`convolve` for one row of each of B sequences: rows [B, C], tails [B, K - 1, C].

    Returns the results [B, C] and the new tails.
    """
    joined = torch.cat([tails, rows.unsqueeze(1)], dim=1)
    return F.silu((joined * weight.T).sum(dim=1)), joined[:, 1:]
