"""The K types of GGUF: super-blocks of 256 elements, whose runs have small integer scales of their own.

Formats are described as they lie in the file. Every function maps quantised blocks [n, bytes] uint8 to elements
[n, 256] float32.
"""

from __future__ import annotations

import torch

ELEMENTS = 256


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The float16 number at byte ``at``, float32 [n, 1, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float().unsqueeze(-1)


def _shifted(packed: torch.Tensor, shifts: list[int], mask: int) -> torch.Tensor:
    """packed [n, h, w] -> [n, h, len(shifts), w]: the same bytes once per shift."""
    by = torch.tensor(shifts, dtype=torch.uint8).view(1, 1, -1, 1)
    return (packed.unsqueeze(2) >> by) & mask


def _two_bit_codes(packed: torch.Tensor) -> torch.Tensor:
    """64 bytes -> 256 codes: 32 bytes hold 128 elements, four runs of 32 at shifts 0, 2, 4 and 6."""
    return _shifted(packed.view(-1, 2, 32), [0, 2, 4, 6], 3).reshape(-1, ELEMENTS)


def _nibble_codes(packed: torch.Tensor) -> torch.Tensor:
    """128 bytes -> [n, 8, 32] codes: 32 bytes hold 64 elements, low nibbles first."""
    return _shifted(packed.view(-1, 4, 32), [0, 4], 15).reshape(-1, 8, 32)


def _six_bit_pairs(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """12 bytes -> 8 scales and 8 minimums of six bits, float32 [n, 8, 1] each."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([first & 63, (third & 15) | ((first >> 6) << 4)], dim=1)
    minimums = torch.cat([second & 63, (third >> 4) | ((second >> 6) << 4)], dim=1)
    return scales.float().unsqueeze(-1), minimums.float().unsqueeze(-1)


def q2_k(blocks: torch.Tensor) -> torch.Tensor:
    """16 bytes of scales (low nibble) and minimums (high), 64 bytes of codes, d, dmin; runs of 16."""
    codes = _two_bit_codes(blocks[:, 16:80].contiguous()).view(-1, 16, 16).float()
    scales = (blocks[:, :16] & 15).float().unsqueeze(-1)
    minimums = (blocks[:, :16] >> 4).float().unsqueeze(-1)
    d, dmin = _half(blocks, 80), _half(blocks, 82)
    return ((d * scales) * codes - dmin * minimums).view(-1, ELEMENTS)


def q3_k(blocks: torch.Tensor) -> torch.Tensor:
    """32 bytes of high bits, 64 of low codes, 12 of scales, d; runs of 16. A clear high bit takes 4 off."""
    low = _two_bit_codes(blocks[:, 32:96].contiguous()).view(-1, 8, 32)
    bits = torch.arange(8, dtype=torch.uint8).view(1, -1, 1)
    high = (blocks[:, :32].unsqueeze(1) >> bits) & 1
    codes = low.float() - (1 - high.float()) * 4
    packed = blocks[:, 96:108]
    low_scales = torch.cat([packed[:, :8] & 15, packed[:, :8] >> 4], dim=1)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, -1, 1)
    high_scales = ((packed[:, 8:].unsqueeze(1) >> shifts) & 3).reshape(-1, 16)
    scales = (low_scales | (high_scales << 4)).float().unsqueeze(-1) - 32
    return ((_half(blocks, 108) * scales) * codes.reshape(-1, 16, 16)).view(-1, ELEMENTS)


def q4_k(blocks: torch.Tensor) -> torch.Tensor:
    """d, dmin, 12 bytes of scales and minimums, 128 bytes of nibbles; runs of 32."""
    scales, minimums = _six_bit_pairs(blocks[:, 4:16])
    codes = _nibble_codes(blocks[:, 16:].contiguous()).float()
    return (_half(blocks, 0) * scales * codes - _half(blocks, 2) * minimums).view(-1, ELEMENTS)


def q5_k(blocks: torch.Tensor) -> torch.Tensor:
    """Q4_K with 32 bytes of fifth bits before the nibbles: run j takes bit j."""
    scales, minimums = _six_bit_pairs(blocks[:, 4:16])
    bits = torch.arange(8, dtype=torch.uint8).view(1, -1, 1)
    fifth = (blocks[:, 16:48].unsqueeze(1) >> bits) & 1
    codes = (_nibble_codes(blocks[:, 48:].contiguous()) | (fifth << 4)).float()
    return (_half(blocks, 0) * scales * codes - _half(blocks, 2) * minimums).view(-1, ELEMENTS)


def q6_k(blocks: torch.Tensor) -> torch.Tensor:
    """128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, d; runs of 16, codes less 32."""
    # Each half: 64 low bytes give the runs (bytes 0-31 low, 32-63 low, 0-31 high, 32-63 high).
    low = _shifted(blocks[:, :128].reshape(-1, 2, 64), [0, 4], 15).reshape(-1, 2, 4, 32)
    high = _shifted(blocks[:, 128:192].reshape(-1, 2, 32), [0, 2, 4, 6], 3)
    codes = (low | (high << 4)).reshape(-1, 16, 16).float() - 32
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float().unsqueeze(-1)
    return ((_half(blocks, 208) * scales) * codes).view(-1, ELEMENTS)
