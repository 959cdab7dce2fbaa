"""The gated delta rule (Yang, Kautz and Hatamizadeh, 2024, "Gated Delta Networks") and the convolution before it.

Per value head, with state S [key_dim, value_dim], decay g <= 0 and step b:

    S <- exp(g) S;   S <- S + k (b (v - S^T k))^T;   o = S^T q

Several tokens are computed in chunks: inside a chunk the steps become a triangular system (see :func:`chunked`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

CHUNK = 64
_NORM_EPS = 1e-6


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


def normalised(x: torch.Tensor) -> torch.Tensor:
    """x / |x| over the last dimension."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + _NORM_EPS)


def recurrent(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, b: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """One token of each of B sequences; ``state`` [B, H, K, V] is moved on in place.

    Args:
        q, k: [B, H, K], normalised, q scaled; v: [B, H, V]; g, b: [B, H].

    Returns [B, H, V].
    """
    state *= g.exp()[..., None, None]
    known = torch.einsum("bhk,bhkv->bhv", k, state)
    delta = b.unsqueeze(-1) * (v - known)
    state += k.unsqueeze(-1) * delta.unsqueeze(-2)
    return torch.einsum("bhk,bhkv->bhv", q, state)


def chunked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, b: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """T tokens of one sequence in chunks; ``state`` [H, K, V] is moved on in place.

    Args:
        q, k: [T, H, K], normalised, q scaled; v: [T, H, V]; g, b: [T, H].

    Returns [T, H, V].

    With c the running sum of g in a chunk and L_ij = exp(c_i - c_j) for i >= j: the deltas D solve
    (I + strict_tril((b k k^T) L)) D = b (v - exp(c) k S), and then o = exp(c) q S + tril(q k^T L) D.
    """
    length = q.shape[0]
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    g, b = g.transpose(0, 1), b.transpose(0, 1)
    outputs = []
    for start in range(0, length, CHUNK):
        rows = slice(start, min(start + CHUNK, length))
        qc, kc, vc, bc = q[:, rows], k[:, rows], v[:, rows], b[:, rows].unsqueeze(-1)
        c = g[:, rows].cumsum(-1)
        # The exponent is masked before exp: above the diagonal it would overflow.
        differences = (c.unsqueeze(-1) - c.unsqueeze(-2)).tril()
        decay = differences.exp().tril()
        system = ((bc * kc) @ kc.transpose(-1, -2) * decay).tril(-1)
        grown = c.exp().unsqueeze(-1)
        wanted = bc * (vc - (kc * grown) @ state)
        delta = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        outputs.append((qc * grown) @ state + (qc @ kc.transpose(-1, -2) * decay) @ delta)
        last = c[:, -1:]
        state *= last.exp().unsqueeze(-1)
        state += (kc * (last - c).exp().unsqueeze(-1)).transpose(-1, -2) @ delta
    return torch.cat(outputs, dim=1).transpose(0, 1)
