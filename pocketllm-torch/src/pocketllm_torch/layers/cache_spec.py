"""What a layer keeps of a sequence between steps. A model declares one spec per layer; the engine makes the caches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KeyValueSpec:
    """A key and a value per position. ``window``: positions that a row sees, its own included; 0: all."""

    num_kv_heads: int
    head_dim: int
    window: int = 0

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        return block_size * 2 * self.num_kv_heads * self.head_dim * dtype.itemsize


@dataclass(frozen=True)
class RecurrentSpec:
    """A state of fixed size, whatever the number of positions: one float32 tensor per name, by its shape."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]


CacheSpec = KeyValueSpec | RecurrentSpec


def block_bytes(specs: Iterable[CacheSpec], block_size: int, dtype: torch.dtype) -> int:
    """What a block of ``block_size`` positions takes in all layers together."""
    return sum(spec.block_bytes(block_size, dtype) for spec in specs if isinstance(spec, KeyValueSpec))


def index_among_its_kind(specs: Sequence[CacheSpec], layer: int) -> int:
    """Where a layer lies in the cache that layers of its kind share."""
    return sum(type(spec) is type(specs[layer]) for spec in specs[:layer])
