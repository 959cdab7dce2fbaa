"""Everything that the sequences of one model keep between steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pocketllm_torch.layers.cache_spec import CacheSpec, KeyValueSpec, RecurrentSpec
from pocketllm_torch.layers.kv_cache import KVCache
from pocketllm_torch.layers.state_cache import StateCache


class Caches:
    """The caches that a model's specs ask for: ``kv`` of its attention layers, ``states`` of its recurrent layers.

    Args:
        specs: one per layer.
        num_slots: sequences that run together; each has a recurrent state of its own.
        dtype: of keys and values.
    """

    def __init__(
        self,
        specs: Sequence[CacheSpec],
        *,
        num_blocks: int,
        block_size: int,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        attention = [spec for spec in specs if isinstance(spec, KeyValueSpec)]
        recurrent = [spec for spec in specs if isinstance(spec, RecurrentSpec)]
        self.windows = frozenset(spec.window for spec in attention)
        sizes = {(spec.num_kv_heads, spec.head_dim) for spec in attention}
        if len(sizes) != 1:
            raise ValueError(f"the attention layers of a model share one size of key and value, not {sorted(sizes)}")
        ((num_kv_heads, head_dim),) = sizes
        self.kv = KVCache(
            num_layers=len(attention),
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            device=device,
        )
        self.states = StateCache(recurrent, num_slots, device) if recurrent else None

    def copy_block(self, source: int, target: int) -> None:
        self.kv.copy_block(source, target)

    def clear_slot(self, slot: int) -> None:
        """Make a slot's state that of a sequence without positions."""
        if self.states is not None:
            self.states.clear(slot)

    def copy_slot(self, source: int, target: int) -> None:
        if self.states is not None:
            self.states.copy(source, target)
