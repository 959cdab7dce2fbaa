"""Many tokens of one sequence: inside a segment the steps become a triangular system."""

from __future__ import annotations

import torch

SEGMENT = 64


def delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, b: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """T tokens of one sequence, segment by segment; ``state`` [H, K, V] is moved on in place.

    Args:
        q, k: [T, H, K], normalised, q scaled; v: [T, H, V]; g, b: [T, H].

    Returns [T, H, V].

    With c the running sum of g in a segment and L_ij = exp(c_i - c_j) for i >= j: the deltas D solve
    (I + strict_tril((b k k^T) L)) D = b (v - exp(c) k S), and then o = exp(c) q S + tril(q k^T L) D.
    """
    length = q.shape[0]
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    g, b = g.transpose(0, 1), b.transpose(0, 1)
    outputs = []
    for start in range(0, length, SEGMENT):
        rows = slice(start, min(start + SEGMENT, length))
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
