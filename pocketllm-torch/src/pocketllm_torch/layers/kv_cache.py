"""The paged key/value cache: one tensor, addressed by block id."""

from __future__ import annotations

import numpy as np
import torch

NULL_BLOCK = 0
"""The block that padding points to. No sequence has it, and nothing is written to it but padding's zeros."""


class KVCache:
    """Keys and values of all layers.

    Layout: [num_layers, num_blocks + 1, block_size, 2, num_kv_heads, head_dim], keys before values; block 0 is the
    null block. A cache row is one position of a layer: number ``block * block_size + offset``.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        shape = (num_layers, num_blocks + 1, block_size, 2, num_kv_heads, head_dim)
        self.data = _zeros(shape, dtype, device)
        self._rows = [layer.view(-1, 2 * num_kv_heads * head_dim) for layer in self.data]
        self._blocks = [layer.view(num_blocks + 1, -1) for layer in self.data]

    def write(self, layer: int, cache_rows: torch.Tensor, keys_values: torch.Tensor) -> None:
        """Store rows [T, 2 * num_kv_heads * head_dim] at ``cache_rows`` [T]."""
        self._rows[layer].index_copy_(0, cache_rows, keys_values)

    def gather(
        self, layer: int, blocks: torch.Tensor, num_sequences: int, buffer: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of ``num_sequences`` equally padded block lists, ``blocks`` [num_sequences * n].

        ``buffer`` is from :meth:`gather_buffer`; the results are views of it and last until its next use.

        Returns two tensors [num_sequences, num_kv_heads, n * block_size, head_dim].
        """
        torch.index_select(self._blocks[layer], 0, blocks, out=buffer)
        return self._split(buffer.view(num_sequences, -1, 2, self.num_kv_heads, self.head_dim))

    def gather_buffer(self, num_blocks: int) -> torch.Tensor:
        """Memory for gathering ``num_blocks`` blocks, for all layers of a step: fresh pages are paid for once."""
        return torch.empty((num_blocks, self._blocks[0].shape[1]), dtype=self.data.dtype, device=self.data.device)

    def view(self, layer: int, first_block: int, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As :meth:`gather` for one sequence whose blocks are neighbours, without a copy."""
        rows = self.data[layer, first_block : first_block + num_blocks]
        return self._split(rows.view(1, -1, 2, self.num_kv_heads, self.head_dim))

    def copy_block(self, source: int, target: int) -> None:
        assert target != NULL_BLOCK
        self.data[:, target].copy_(self.data[:, source])

    @staticmethod
    def _split(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = rows.transpose(1, 3)
        return rows[:, :, 0], rows[:, :, 1]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that, on a CPU, take memory only when first written to: the cache may be larger than what is ever used."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = dtype.itemsize
    for size in shape:
        num_bytes *= size
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
