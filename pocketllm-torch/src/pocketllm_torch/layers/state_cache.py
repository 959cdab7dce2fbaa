"""The recurrent states of running sequences: what linear-attention layers keep instead of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class StateShape:
    """Sizes of one layer's state. ``num_channels``: queries, keys and values that enter the convolution."""

    num_layers: int
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel_size: int

    @property
    def num_channels(self) -> int:
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim


class StateCache:
    """``recurrent`` [layers, slots, value heads, key_dim, value_dim] and ``tails`` [layers, slots, kernel_size - 1,
    channels], the newest inputs of the convolution, oldest first; all float32. A sequence owns its slot while it runs.
    """

    def __init__(self, shape: StateShape, num_slots: int, device: torch.device) -> None:
        self.shape = shape
        heads = (shape.num_value_heads, shape.key_dim, shape.value_dim)
        self.recurrent = torch.zeros((shape.num_layers, num_slots, *heads), device=device)
        self.tails = torch.zeros(
            (shape.num_layers, num_slots, shape.kernel_size - 1, shape.num_channels), device=device
        )

    def clear(self, slot: int) -> None:
        self.recurrent[:, slot] = 0
        self.tails[:, slot] = 0

    def copy(self, source: int, target: int) -> None:
        self.recurrent[:, target] = self.recurrent[:, source]
        self.tails[:, target] = self.tails[:, source]
