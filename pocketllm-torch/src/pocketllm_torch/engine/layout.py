"""From a step's spans to the tensors that layers read."""

from __future__ import annotations

import torch

from pocketllm_torch.engine.step import Span
from pocketllm_torch.layers.caches import Caches
from pocketllm_torch.layers.kv_cache import NULL_BLOCK
from pocketllm_torch.layers.row_layout import DecodeGroup, RowLayout, SpanRows, StateRows

# Decoding rows are padded to the longest of their group; a group may waste this share before it is split.
_MAX_PADDING = 0.5


class LayoutBuilder:
    """Builds layouts for one model's caches.

    Args:
        dtype: of the masks: that of the activations.
        views: a lone row whose blocks are neighbours reads them in place. Its alignment, and so the order of its sums,
            then depends on where the blocks lie.
    """

    def __init__(self, caches: Caches, dtype: torch.dtype, device: torch.device, *, views: bool) -> None:
        self._caches = caches
        self._block_size = caches.kv.block_size
        self._dtype = dtype
        self._device = device
        self._views = views

    def build(self, spans: list[Span], first_rows: list[int]) -> RowLayout:
        """Args: spans: in the order of :class:`StepInput`; first_rows: the first row of each."""
        cache_rows = [row for span in spans for row in self._cache_rows(span)]
        num_singles = sum(span.is_single for span in spans)
        return RowLayout(
            cache_rows=self._tensor(cache_rows),
            decodes=self._decode_groups(spans[:num_singles]),
            spans=[
                self._span_rows(span, first)
                for span, first in zip(spans[num_singles:], first_rows[num_singles:], strict=True)
            ],
            states=self._state_rows(spans, first_rows, num_singles),
        )

    def _cache_rows(self, span: Span) -> list[int]:
        size, blocks = self._block_size, span.blocks
        positions = range(span.start, span.start + len(span.tokens))
        return [blocks[position // size] * size + position % size for position in positions]

    def _decode_groups(self, singles: list[Span]) -> list[DecodeGroup]:
        """Split the rows, sorted by length, where padding would waste too much."""
        groups: list[DecodeGroup] = []
        first = 0
        for end in range(1, len(singles) + 1):
            if end < len(singles):
                used = sum(len(span.blocks) for span in singles[first : end + 1])
                if used >= len(singles[end].blocks) * (end + 1 - first) * _MAX_PADDING:
                    continue
            groups.append(self._decode_group(singles[first:end], first))
            first = end
        return groups

    def _decode_group(self, members: list[Span], first: int) -> DecodeGroup:
        num_blocks = len(members[-1].blocks)
        columns = torch.arange(num_blocks * self._block_size, device=self._device)
        lengths = self._tensor([span.start + 1 for span in members]).unsqueeze(1)
        masks = {}
        for window in self._caches.windows:
            hidden = columns >= lengths
            if window:
                hidden |= columns < lengths - window
            mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
            masks[window] = mask.masked_fill_(hidden, float("-inf")).view(len(members), 1, 1, -1)
        if len(members) == 1 and self._views and _are_neighbours(members[0].blocks):
            return DecodeGroup(first, 1, num_blocks, None, members[0].blocks[0], masks)
        padded = [
            block for span in members for block in (*span.blocks, *[NULL_BLOCK] * (num_blocks - len(span.blocks)))
        ]
        buffer = self._caches.kv.gather_buffer(len(padded))
        return DecodeGroup(first, len(members), num_blocks, self._tensor(padded), NULL_BLOCK, masks, buffer)

    def _span_rows(self, span: Span, first: int) -> SpanRows:
        length, end = len(span.tokens), span.start + len(span.tokens)
        needed = [window for window in self._caches.windows if span.start or 0 < window < end]
        masks = {}
        if needed:
            rows = torch.arange(span.start, end, device=self._device).unsqueeze(1)
            columns = torch.arange(end, device=self._device)
            for window in needed:
                hidden = columns > rows
                if window:
                    hidden |= columns <= rows - window
                mask = torch.zeros((length, end), dtype=self._dtype, device=self._device)
                masks[window] = mask.masked_fill_(hidden, float("-inf"))
        if span.start == 0:
            return SpanRows(first, length, 0, masks=masks)
        buffer = self._caches.kv.gather_buffer(len(span.blocks))
        return SpanRows(first, length, span.start, self._tensor(span.blocks), masks, buffer)

    def _state_rows(self, spans: list[Span], first_rows: list[int], num_singles: int) -> StateRows:
        if self._caches.states is None:
            return StateRows()
        if any(span.num_draft for span in spans):
            raise ValueError("a recurrent state cannot take a rejected proposal back: propose nothing for this model")
        several = tuple(
            (slice(first, first + len(span.tokens)), span.slot)
            for span, first in zip(spans[num_singles:], first_rows[num_singles:], strict=True)
        )
        if not num_singles:
            return StateRows(spans=several)
        slots = self._tensor([span.slot for span in spans[:num_singles]])
        return StateRows(torch.arange(num_singles, device=self._device), slots, several)

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def _are_neighbours(blocks: list[int]) -> bool:
    return blocks == list(range(blocks[0], blocks[0] + len(blocks)))
