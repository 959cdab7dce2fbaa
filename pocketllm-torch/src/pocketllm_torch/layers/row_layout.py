"""Which rows of a step belong together. Built once per step and read by every layer.

A step's tokens are flat rows: sequences that decode one token first, one row each, then spans of several rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class DecodeGroup:
    """Decoding rows ``first`` to ``first + count``, padded to one length of L positions.

    ``blocks`` [count * L / block_size] lists their blocks row by row, and ``buffer`` is where they are gathered. For
    one row with neighbouring blocks ``first_block`` is set instead and nothing is copied. ``masks`` [count, 1, 1, L]
    are 0 or -inf, one for each window of the model's layers; 0 is the window of layers that see every position.
    """

    first: int
    count: int
    num_blocks: int
    blocks: torch.Tensor | None
    first_block: int
    masks: Mapping[int, torch.Tensor]
    buffer: torch.Tensor | None = None


@dataclass(frozen=True)
class SpanRows:
    """Rows ``first`` to ``first + length`` of one sequence, which come after ``num_context`` cached positions.

    Without context the rows attend to each other alone, and the cache is not read. With it, ``blocks`` are gathered in
    ``buffer``. ``masks`` [length, num_context + length] are 0 or -inf, one for each window; a window that is missing
    needs none: causal attention among the rows is all.
    """

    first: int
    length: int
    num_context: int
    blocks: torch.Tensor | None = None
    masks: Mapping[int, torch.Tensor] = field(default_factory=dict)
    buffer: torch.Tensor | None = None


@dataclass(frozen=True)
class StateRows:
    """For recurrent layers: the rows that are one token of a sequence each, and the spans of several.

    ``singles`` [B] are rows and ``slots`` [B] the slots of their sequences; both None without such rows. ``spans`` are
    rows and slot of each span.
    """

    singles: torch.Tensor | None = None
    slots: torch.Tensor | None = None
    spans: tuple[tuple[slice, int], ...] = ()


@dataclass(frozen=True)
class RowLayout:
    """The rows of one step. ``cache_rows`` [T] is where each row's key and value are stored."""

    cache_rows: torch.Tensor
    decodes: list[DecodeGroup] = field(default_factory=list)
    spans: list[SpanRows] = field(default_factory=list)
    states: StateRows = field(default_factory=StateRows)
