"""FP8 codes and the scales of their tiles to numbers.

    weight[i, j] = code[i, j] * scale[i // tile rows, j // tile columns]

in float32, with codes of E4M3 (bias 7, no infinities, largest 448). The last tile of a row or column may be partial. A
stack of matrices has a stack of scales.
"""

from __future__ import annotations

import torch


def grid_shape(shape: tuple[int, ...], tile: tuple[int, int]) -> tuple[int, ...]:
    """The shape of the scales of codes with ``shape`` [..., rows, columns]."""
    *stack, rows, columns = shape
    return (*stack, -(-rows // tile[0]), -(-columns // tile[1]))


def dequantize_tiles(codes: torch.Tensor, scales: torch.Tensor, tile: tuple[int, int]) -> torch.Tensor:
    """float32 [..., rows, columns].

    Args:
        codes: float8_e4m3fn [..., rows, columns].
        scales: a floating-point tensor of :func:`grid_shape`.
        tile: rows and columns that share a scale.
    """
    values = codes.float()
    # Spread over the columns alone: over the rows too, the scales would take as much memory as the weights.
    by_column = scales.float().repeat_interleave(tile[1], dim=-1)[..., : codes.shape[-1]]
    for index, rows in enumerate(torch.split(values, tile[0], dim=-2)):
        rows.mul_(by_column[..., index, None, :])
    return values
