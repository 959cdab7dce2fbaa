"""GGUF types whose four-bit codes look a value up in a table: IQ4_NL, IQ4_XS and MXFP4.

Every function maps quantised blocks [n, bytes] uint8 -> elements [n, elements] float32.
"""

from __future__ import annotations

import torch

_NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# E2M1: three bits of magnitude, then the sign.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def _look_up(packed: torch.Tensor, table: tuple[float, ...]) -> torch.Tensor:
    """packed [..., 16] -> [..., 32]: low nibbles are the first half."""
    codes = torch.cat([packed & 15, packed >> 4], dim=-1)
    return torch.tensor(table, dtype=torch.float32)[codes.long()]


def iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    """d, 16 bytes of nibbles."""
    d = blocks[:, :2].contiguous().view(torch.float16).float()
    return _look_up(blocks[:, 2:], _NON_LINEAR) * d


def iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    """d, 16 high bits of scales, 4 bytes of their low nibbles, 128 bytes of nibbles; runs of 32, scales less 32."""
    d = blocks[:, :2].contiguous().view(torch.float16).float()
    low = torch.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], dim=-1).reshape(-1, 8)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)
    high = ((blocks[:, 2:4].unsqueeze(-1) >> shifts) & 3).reshape(-1, 8)
    scales = (low | (high << 4)).float() - 32
    values = _look_up(blocks[:, 8:].reshape(-1, 8, 16), _NON_LINEAR)
    return ((d * scales).unsqueeze(-1) * values).reshape(-1, 256)


def mxfp4(blocks: torch.Tensor) -> torch.Tensor:
    """A power of two (E8M0), 16 bytes of E2M1 nibbles."""
    scale = torch.exp2(blocks[:, :1].float() - 127)
    return _look_up(blocks[:, 1:], _E2M1) * scale
