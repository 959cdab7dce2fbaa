"""The truth for the gated delta rule: one token after the other. The maths is in README.md."""

from __future__ import annotations

import torch


def delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, b: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """T tokens of one sequence; ``state`` [H, K, V] is moved on in place.

    Args:
        q, k: [T, H, K], normalised, q scaled; v: [T, H, V]; g, b: [T, H].

    Returns [T, H, V].
    """
    outputs = []
    for token in range(q.shape[0]):
        state *= g[token].exp()[:, None, None]
        known = torch.einsum("hk,hkv->hv", k[token], state)
        delta = b[token].unsqueeze(-1) * (v[token] - known)
        state += k[token].unsqueeze(-1) * delta.unsqueeze(-2)
        outputs.append(torch.einsum("hk,hkv->hv", q[token], state))
    return torch.stack(outputs)
