"""Grouped-query attention with its projections."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pocketllm_torch.layers.attention import paged_attention
from pocketllm_torch.layers.rope import RotaryTable, rotate_
from pocketllm_torch.models.layer import StepContext
from pocketllm_torch.weights.parts import AttentionWeights


@dataclass(frozen=True)
class AttentionShape:
    """``window``: positions a row sees, its own included; 0: all. ``cache_layer``: the layer's place in the cache."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    scale: float
    window: int
    cache_layer: int


class AttentionMixer:
    """One product for q, k and v, norms of each head where the family has them, rotation, attention, and the output's
    product; a gate, where there is one, multiplies what attention returns by its sigmoid."""

    def __init__(self, weights: AttentionWeights, shape: AttentionShape, rotary: RotaryTable) -> None:
        self._weights = weights
        self._shape = shape
        self._rotary = rotary
        self._qkv_width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        self._is_gated = weights.qkv.out_features > self._qkv_width

    def __call__(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        weights, shape = self._weights, self._shape
        heads, head_dim = shape.num_heads, shape.head_dim
        projected = weights.qkv(x)
        qkv = projected[:, : self._qkv_width]
        rotated = qkv.view(x.shape[0], -1, head_dim)[:, : heads + shape.num_kv_heads]
        if weights.query_norm is not None and weights.key_norm is not None:
            rotated[:, :heads].copy_(weights.query_norm(rotated[:, :heads]))
            rotated[:, heads:].copy_(weights.key_norm(rotated[:, heads:]))
        rotate_(rotated[..., : shape.rotary_dim], *step.angles[self._rotary])
        attended = paged_attention(
            qkv, step.caches.kv, shape.cache_layer, step.layout, heads, shape.scale, shape.window
        )
        if self._is_gated:
            attended.mul_(projected[:, self._qkv_width :].sigmoid())
        return weights.output(attended)
