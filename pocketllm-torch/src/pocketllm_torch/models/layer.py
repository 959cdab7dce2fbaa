"""What the layers of a decoder have in common: their parts, and how a branch joins the residual stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from pocketllm_torch.layers.caches import Caches
from pocketllm_torch.layers.norm import RMSNorm
from pocketllm_torch.layers.rope import RotaryTable
from pocketllm_torch.layers.row_layout import RowLayout


@dataclass(frozen=True)
class StepContext:
    """One step on its way through the layers. ``angles`` are cos and sin of the rows' positions, for each table."""

    layout: RowLayout
    caches: Caches
    angles: Mapping[RotaryTable, tuple[torch.Tensor, torch.Tensor]]


class Mixer(Protocol):
    """Mixes positions: attention or a recurrence. It stores what it keeps of the rows in the step's caches."""

    def __call__(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        """Normed rows [T, H] -> [T, H]."""
        ...


class FeedForward(Protocol):
    """Computes each row alone: [T, H] -> [T, H]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class Layer(Protocol):
    """One floor of a decoder."""

    def __call__(self, x: torch.Tensor, step: StepContext) -> None:
        """Move the residual stream x [T, H] through the layer, in place."""


@dataclass(frozen=True)
class PreNormLayer:
    """x += mixer(norm(x)); x += feed_forward(norm(x))."""

    input_norm: RMSNorm
    mixer: Mixer
    feed_forward_norm: RMSNorm
    feed_forward: FeedForward

    def __call__(self, x: torch.Tensor, step: StepContext) -> None:
        x.add_(self.mixer(self.input_norm(x), step))
        x.add_(self.feed_forward(self.feed_forward_norm(x)))


@dataclass(frozen=True)
class SandwichLayer:
    """x += norm(mixer(norm(x))); x += norm(feed_forward(norm(x)))."""

    input_norm: RMSNorm
    mixer: Mixer
    mixed_norm: RMSNorm
    feed_forward_norm: RMSNorm
    feed_forward: FeedForward
    fed_norm: RMSNorm

    def __call__(self, x: torch.Tensor, step: StepContext) -> None:
        x.add_(self.mixed_norm(self.mixer(self.input_norm(x), step)))
        x.add_(self.fed_norm(self.feed_forward(self.feed_forward_norm(x))))
