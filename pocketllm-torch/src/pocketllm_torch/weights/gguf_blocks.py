"""GGUF's quantised blocks as torch tensors. Those here have 32 elements; scales are little-endian float16.

A function takes quantised blocks as bytes, uint8 [num_blocks, bytes per block], and returns float32 [num_blocks, 32].
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from pocketllm_torch.weights import gguf_super_blocks, gguf_table_blocks

BLOCK_ELEMENTS = 32


def dequantize(dtype: str, data: torch.Tensor) -> torch.Tensor:
    """``data`` uint8 [n] of the GGUF type ``dtype`` -> its elements in order, float32 (float16, bfloat16: as stored).

    The result never shares memory with ``data``.

    Raises:
        KeyError: a type that is not in :data:`SUPPORTED_TYPES`.
    """
    if dtype in _PLAIN_TYPES:
        return data.view(_PLAIN_TYPES[dtype]).clone()
    num_bytes, unpack = _BLOCK_TYPES[dtype]
    return unpack(data.view(-1, num_bytes)).view(-1)


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Codes 0 to 15, float32: low nibbles are elements 0 to 15, high nibbles 16 to 31."""
    codes = torch.empty((packed.shape[0], BLOCK_ELEMENTS))
    codes[:, :16] = packed & 15
    codes[:, 16:] = packed >> 4
    return codes


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """Four bytes, little-endian: bit i belongs to element i. Returns 0.0 or 16.0 per element."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((packed.unsqueeze(-1) >> shifts) & 1).reshape(-1, BLOCK_ELEMENTS).float() * 16


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 2:]).sub_(8).mul_(_half(blocks, 0))


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 4:]).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    codes = _nibbles(blocks[:, 6:]).add_(_fifth_bits(blocks[:, 2:6]))
    return codes.sub_(16).mul_(_half(blocks, 0))


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    codes = _nibbles(blocks[:, 8:]).add_(_fifth_bits(blocks[:, 4:8]))
    return codes.mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks, 0))


_PLAIN_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCK_TYPES: dict[str, tuple[int, Callable[[torch.Tensor], torch.Tensor]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q2_K": (84, gguf_super_blocks.q2_k),
    "Q3_K": (110, gguf_super_blocks.q3_k),
    "Q4_K": (144, gguf_super_blocks.q4_k),
    "Q5_K": (176, gguf_super_blocks.q5_k),
    "Q6_K": (210, gguf_super_blocks.q6_k),
    "IQ4_NL": (18, gguf_table_blocks.iq4_nl),
    "IQ4_XS": (136, gguf_table_blocks.iq4_xs),
    "MXFP4": (17, gguf_table_blocks.mxfp4),
}
SUPPORTED_TYPES = frozenset({*_PLAIN_TYPES, *_BLOCK_TYPES})
