"""Attention over the paged cache, for a step that mixes decoding rows and longer spans."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from pocketllm_torch.layers.kv_cache import KVCache
from pocketllm_torch.layers.row_layout import DecodeGroup, RowLayout, SpanRows


def paged_attention(
    qkv: torch.Tensor,
    cache: KVCache,
    layer: int,
    layout: RowLayout,
    num_heads: int,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """Store the rows' keys and values, and attend.

    Args:
        qkv: [T, (num_heads + 2 * num_kv_heads) * head_dim], queries, keys, values; already rotated.
        layer: counted among those with keys and values.
        window: positions a row sees, its own included; 0: all up to its own.

    Returns [T, num_heads * head_dim].
    """
    head_dim = cache.head_dim
    width = num_heads * head_dim
    cache.write(layer, layout.cache_rows, qkv[:, width:])
    outputs: list[torch.Tensor] = []
    for group in layout.decodes:
        rows = qkv[group.first : group.first + group.count]
        outputs.append(_attend_group(rows, cache, layer, group, num_heads, scale, window))
    for span in layout.spans:
        rows = qkv[span.first : span.first + span.length]
        outputs.append(_attend_span(rows, cache, layer, span, num_heads, scale, window))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_group(
    rows: torch.Tensor, cache: KVCache, layer: int, group: DecodeGroup, num_heads: int, scale: float, window: int
) -> torch.Tensor:
    if group.blocks is None or group.buffer is None:
        keys, values = cache.view(layer, group.first_block, group.num_blocks)
    else:
        keys, values = cache.gather(layer, group.blocks, group.count, group.buffer)
    # The query heads that share a key/value head become the query rows of that head: nothing is repeated.
    queries = rows[:, : num_heads * cache.head_dim].reshape(group.count, cache.num_kv_heads, -1, cache.head_dim)
    out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=group.masks[window], scale=scale)
    return out.reshape(group.count, num_heads * cache.head_dim)


def _attend_span(
    rows: torch.Tensor, cache: KVCache, layer: int, span: SpanRows, num_heads: int, scale: float, window: int
) -> torch.Tensor:
    heads = rows.view(1, span.length, -1, cache.head_dim).transpose(1, 2)
    queries = heads[:, :num_heads]
    mask = span.masks.get(window)
    if span.blocks is None or span.buffer is None:
        keys = heads[:, num_heads : num_heads + cache.num_kv_heads]
        values = heads[:, num_heads + cache.num_kv_heads :]
        out = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
        )
    else:
        keys, values = cache.gather(layer, span.blocks, 1, span.buffer)
        length = span.num_context + span.length
        out = F.scaled_dot_product_attention(
            queries, keys[:, :, :length], values[:, :, :length], attn_mask=mask, scale=scale, enable_gqa=True
        )
    return out.transpose(1, 2).reshape(span.length, -1)
