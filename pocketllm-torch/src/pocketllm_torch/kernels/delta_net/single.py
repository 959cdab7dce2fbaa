"""One token of each of several sequences: what a step without prompts computes."""

from __future__ import annotations

import torch


def delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, b: torch.Tensor, states: torch.Tensor
) -> torch.Tensor:
    """One token of each of B sequences; ``states`` [B, H, K, V] are moved on in place.

    Args:
        q, k: [B, H, K], normalised, q scaled; v: [B, H, V]; g, b: [B, H].

    Returns [B, H, V].
    """
    states *= g.exp()[..., None, None]
    known = torch.einsum("bhk,bhkv->bhv", k, states)
    delta = b.unsqueeze(-1) * (v - known)
    states += k.unsqueeze(-1) * delta.unsqueeze(-2)
    return torch.einsum("bhk,bhkv->bhv", q, states)
