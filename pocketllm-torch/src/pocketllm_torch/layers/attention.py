"""Attention over the paged cache, for a step that mixes decoding rows and prompt chunks.

A step's tokens are flat rows: the decoding sequences first, one row each, then the chunks. :class:`AttentionPlan` says
which rows belong together; it is built once per step and read by every layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from pocketllm_torch.layers.kv_cache import KVCache


@dataclass(frozen=True)
class DecodeGroup:
    """Decoding rows ``first`` to ``first + count``, padded to one length of L positions.

    ``blocks`` [count * L / block_size] lists their blocks row by row, and ``buffer`` is where they are gathered. For
    one row with neighbouring blocks ``first_block`` is set instead and nothing is copied. ``mask`` [count, 1, 1, L] is
    0 or -inf. ``lengths`` [count] are the positions each row sees, its own included.
    """

    first: int
    count: int
    num_blocks: int
    blocks: torch.Tensor | None
    first_block: int
    mask: torch.Tensor
    lengths: torch.Tensor
    buffer: torch.Tensor | None = None
    _windowed: dict[int, torch.Tensor] = field(default_factory=dict)

    def mask_of(self, window: int) -> torch.Tensor:
        """``mask``, and with a ``window`` above 0 also -inf for all but each row's newest ``window`` positions."""
        if window == 0:
            return self.mask
        if window not in self._windowed:
            columns = torch.arange(self.mask.shape[-1], device=self.mask.device)
            far = columns < (self.lengths - window).unsqueeze(1)
            self._windowed[window] = self.mask.masked_fill(far[:, None, None, :], float("-inf"))
        return self._windowed[window]


@dataclass(frozen=True)
class ChunkSpan:
    """Rows ``first`` to ``first + length`` of one sequence, which come after ``num_context`` cached positions.

    Without context the rows attend to each other alone, and the cache is not read. With it, ``blocks`` are gathered in
    ``buffer``, and ``mask`` [length, L] is 0 or -inf.
    """

    first: int
    length: int
    num_context: int
    blocks: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    buffer: torch.Tensor | None = None
    _windowed: dict[int, torch.Tensor] = field(default_factory=dict)

    def mask_of(self, window: int, like: torch.Tensor) -> torch.Tensor | None:
        """``mask``, and with a ``window`` above 0 also -inf for all but each row's newest ``window`` positions.

        None when causal attention among the rows says it all. ``like`` gives dtype and device.
        """
        if window == 0 or self.num_context + self.length <= window:
            return self.mask
        if window not in self._windowed:
            end = self.num_context + self.length
            rows = torch.arange(self.num_context, end, device=like.device).unsqueeze(1)
            columns = torch.arange(end, device=like.device)
            hidden = (columns > rows) | (columns <= rows - window)
            mask = torch.zeros((self.length, end), dtype=like.dtype, device=like.device)
            self._windowed[window] = mask.masked_fill_(hidden, float("-inf"))
        return self._windowed[window]


@dataclass
class AttentionPlan:
    """Which rows of the step attend to what. ``slots`` [T] is where each row's key and value go."""

    slots: torch.Tensor
    decodes: list[DecodeGroup] = field(default_factory=list)
    chunks: list[ChunkSpan] = field(default_factory=list)
    state_steps: tuple[torch.Tensor, torch.Tensor] | None = None
    """for models with recurrent states: rows that are one token of a sequence each, and the sequences' state slots"""
    state_chunks: list[tuple[slice, int]] = field(default_factory=list)
    """for such models: the rows of each chunk, and its sequence's state slot"""


def paged_attention(
    qkv: torch.Tensor,
    cache: KVCache,
    layer: int,
    plan: AttentionPlan,
    num_heads: int,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """Store the rows' keys and values, and attend.

    Args:
        qkv: [T, (num_heads + 2 * num_kv_heads) * head_dim], queries, keys, values; already rotated.
        window: positions a row sees, its own included; 0: all up to its own.

    Returns [T, num_heads * head_dim].
    """
    head_dim = cache.head_dim
    width = num_heads * head_dim
    cache.write(layer, plan.slots, qkv[:, width:])
    outputs: list[torch.Tensor] = []
    for group in plan.decodes:
        rows = qkv[group.first : group.first + group.count]
        outputs.append(_decode(rows, cache, layer, group, num_heads, scale, window))
    for span in plan.chunks:
        rows = qkv[span.first : span.first + span.length]
        outputs.append(_chunk(rows, cache, layer, span, num_heads, scale, window))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _decode(
    rows: torch.Tensor, cache: KVCache, layer: int, group: DecodeGroup, num_heads: int, scale: float, window: int
) -> torch.Tensor:
    if group.blocks is None or group.buffer is None:
        keys, values = cache.view(layer, group.first_block, group.num_blocks)
    else:
        keys, values = cache.gather(layer, group.blocks, group.count, group.buffer)
    # The query heads that share a key/value head become the query rows of that head: nothing is repeated.
    queries = rows[:, : num_heads * cache.head_dim].reshape(group.count, cache.num_kv_heads, -1, cache.head_dim)
    out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=group.mask_of(window), scale=scale)
    return out.reshape(group.count, num_heads * cache.head_dim)


def _chunk(
    rows: torch.Tensor, cache: KVCache, layer: int, span: ChunkSpan, num_heads: int, scale: float, window: int
) -> torch.Tensor:
    heads = rows.view(1, span.length, -1, cache.head_dim).transpose(1, 2)
    queries = heads[:, :num_heads]
    if span.blocks is None or span.buffer is None:
        keys = heads[:, num_heads : num_heads + cache.num_kv_heads]
        values = heads[:, num_heads + cache.num_kv_heads :]
        mask = span.mask_of(window, rows)
        out = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
        )
    else:
        keys, values = cache.gather(layer, span.blocks, 1, span.buffer)
        length = span.num_context + span.length
        mask = span.mask_of(window, rows)
        out = F.scaled_dot_product_attention(
            queries, keys[:, :, :length], values[:, :, :length], attn_mask=mask, scale=scale, enable_gqa=True
        )
    return out.transpose(1, 2).reshape(span.length, -1)
