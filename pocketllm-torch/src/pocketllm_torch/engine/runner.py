"""From a step's plan to logits: flat rows in, one forward pass, the rows that matter out."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from pocketllm.types import TokenLogprob
from pocketllm_torch.engine.block_pool import NULL_BLOCK
from pocketllm_torch.engine.logprobs import token_logprobs
from pocketllm_torch.engine.scheduler import Chunk, StepPlan
from pocketllm_torch.engine.sequence import Sequence
from pocketllm_torch.layers.attention import AttentionPlan, ChunkSpan, DecodeGroup
from pocketllm_torch.layers.kv_cache import KVCache
from pocketllm_torch.layers.state_cache import StateCache
from pocketllm_torch.models.registry import Model

# Rows of logits made at once for prompt log probabilities: [rows, vocab] floats are the largest tensors there are.
_LOGIT_ROWS = 64
# Decoding rows are padded to the longest of their group; a group may waste this share before it is split.
_MAX_PADDING = 0.5


@dataclass
class StepOutput:
    """``logits`` [R, vocab], float32, one row per sequence of ``sampled``: decodes first, then completed chunks."""

    sampled: list[Sequence] = field(default_factory=list)
    logits: torch.Tensor | None = None


@dataclass
class _Rows:
    """The flat rows of one forward pass, before they become tensors."""

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)

    def add(self, sequence: Sequence, start: int, length: int, block_size: int) -> int:
        """Append positions ``start`` to ``start + length``; returns the first row."""
        first = len(self.token_ids)
        self.token_ids += sequence.tokens[start : start + length]
        self.positions += range(start, start + length)
        blocks = sequence.blocks
        self.slots += [
            blocks[position // block_size] * block_size + position % block_size
            for position in range(start, start + length)
        ]
        return first


class Runner:
    """Runs plans on one model and cache.

    Args:
        vocab_size: ids that can be generated; the model's rows past it are padding and cut off.
        one_by_one: run every sequence in a forward pass of its own. Then shapes, and with them the order of every sum,
            depend on that sequence alone, and so does its output, bit for bit.

    Threads: only the engine's thread calls it.
    """

    def __init__(
        self, model: Model, cache: KVCache, device: torch.device, vocab_size: int, *, one_by_one: bool = False
    ) -> None:
        self._model = model
        self._cache = cache
        self._device = device
        self._vocab_size = vocab_size
        self._one_by_one = one_by_one

    def execute(self, plan: StepPlan) -> StepOutput:
        """Compute every position of the plan and store its keys and values."""
        if not self._one_by_one:
            return self._forward(plan.decodes, plan.chunks)
        outputs = [self._forward([sequence], []) for sequence in plan.decodes]
        outputs += [self._forward([], [chunk]) for chunk in plan.chunks]
        logits = [output.logits for output in outputs if output.logits is not None]
        return StepOutput(
            sampled=[sequence for output in outputs for sequence in output.sampled],
            logits=torch.cat(logits) if logits else None,
        )

    def copy_block(self, source: int, target: int) -> None:
        self._cache.copy_block(source, target)

    def copy_state(self, source: int, target: int) -> None:
        """Between two sequences' slots; nothing for models without recurrent states."""
        if self._cache.states is not None:
            self._cache.states.copy(source, target)

    def _forward(self, decodes: list[Sequence], chunks: list[Chunk]) -> StepOutput:
        rows = _Rows()
        # Neighbours in length are padded to each other.
        decodes = sorted(decodes, key=lambda sequence: len(sequence.blocks))
        for sequence in decodes:
            rows.add(sequence, sequence.num_computed, 1, self._cache.block_size)
        groups = self._decode_groups(decodes)
        spans: list[ChunkSpan] = []
        for chunk in chunks:
            first = rows.add(chunk.sequence, chunk.start, chunk.length, self._cache.block_size)
            if self._one_by_one and chunk.start >= chunk.sequence.num_prompt_tokens:
                # A generated token that is replayed goes the way it went the first time.
                groups.append(self._decode_group([chunk.sequence], first, [chunk.start + 1]))
            else:
                spans.append(self._chunk_span(chunk, first))
        plan = AttentionPlan(slots=self._tensor(rows.slots), decodes=groups, chunks=spans)
        if self._cache.states is not None:
            self._add_states(plan, decodes, chunks, self._cache.states)
        hidden = self._model.forward(self._tensor(rows.token_ids), self._tensor(rows.positions), plan, self._cache)
        for chunk, first in zip(chunks, _first_rows(len(decodes), chunks), strict=True):
            if chunk.sequence.wants_prompt_logprobs:
                self._add_prompt_logprobs(chunk, hidden[first : first + chunk.length])
        return self._output(decodes, chunks, hidden)

    def _add_states(
        self, plan: AttentionPlan, decodes: list[Sequence], chunks: list[Chunk], states: StateCache
    ) -> None:
        steps = list(enumerate(decodes))
        for chunk, first in zip(chunks, _first_rows(len(decodes), chunks), strict=True):
            sequence = chunk.sequence
            if chunk.start == 0:
                states.clear(sequence.slot)
            if self._one_by_one and chunk.start >= sequence.num_prompt_tokens:
                steps.append((first, sequence))
            else:
                plan.state_chunks.append((slice(first, first + chunk.length), sequence.slot))
        if steps:
            slots = self._tensor([sequence.slot for _, sequence in steps])
            plan.state_steps = (self._tensor([row for row, _ in steps]), slots)

    def _output(self, decodes: list[Sequence], chunks: list[Chunk], hidden: torch.Tensor) -> StepOutput:
        sampled = list(decodes)
        last_rows = list(range(len(decodes)))
        for chunk, first in zip(chunks, _first_rows(len(decodes), chunks), strict=True):
            if chunk.completes:
                sampled.append(chunk.sequence)
                last_rows.append(first + chunk.length - 1)
        if not sampled:
            return StepOutput()
        if len(last_rows) != hidden.shape[0]:
            hidden = hidden.index_select(0, self._tensor(last_rows))
        return StepOutput(sampled, self._logits(hidden))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.logits(hidden)[:, : self._vocab_size]

    def _add_prompt_logprobs(self, chunk: Chunk, hidden: torch.Tensor) -> None:
        """Position p of the prompt is predicted by row p - 1; the last row of the prompt predicts the answer."""
        sequence = chunk.sequence
        end = min(chunk.start + chunk.length, sequence.num_prompt_tokens - 1)
        num_top = sequence.request.sampling_params.num_top_logprobs
        entries: list[TokenLogprob] = sequence.prompt_logprobs
        for start in range(chunk.start, end, _LOGIT_ROWS):
            stop = min(start + _LOGIT_ROWS, end)
            logits = self._logits(hidden[start - chunk.start : stop - chunk.start])
            targets = sequence.tokens[start + 1 : stop + 1]
            entries += token_logprobs(logits, targets, [num_top] * len(targets), first_row=start + 1)

    def _decode_groups(self, decodes: list[Sequence]) -> list[DecodeGroup]:
        """Split the rows, sorted by length, where padding would waste too much."""
        groups: list[DecodeGroup] = []
        first = 0
        for end in range(1, len(decodes) + 1):
            if end < len(decodes):
                widest = len(decodes[end].blocks)
                used = sum(len(sequence.blocks) for sequence in decodes[first : end + 1])
                if used >= widest * (end + 1 - first) * _MAX_PADDING:
                    continue
            members = decodes[first:end]
            groups.append(self._decode_group(members, first, [sequence.num_computed + 1 for sequence in members]))
            first = end
        return groups

    def _decode_group(self, members: list[Sequence], first: int, lengths: list[int]) -> DecodeGroup:
        """One group; ``lengths`` are the positions each row sees, its own included."""
        block_size = self._cache.block_size
        num_blocks = -(-max(lengths) // block_size)
        mask = torch.zeros((len(members), num_blocks * block_size), dtype=self._model.dtype, device=self._device)
        visible = self._tensor(lengths)
        seen = torch.arange(num_blocks * block_size, device=self._device) < visible.unsqueeze(1)
        mask.masked_fill_(~seen, float("-inf"))
        mask = mask.view(len(members), 1, 1, -1)
        lists = [sequence.blocks[:num_blocks] for sequence in members]
        # One by one, a copy always: its alignment, unlike a view's, does not depend on where the blocks lie.
        if len(members) == 1 and not self._one_by_one and _are_neighbours(lists[0]):
            return DecodeGroup(first, 1, num_blocks, None, lists[0][0], mask, visible)
        padded = [block for blocks in lists for block in (*blocks, *[NULL_BLOCK] * (num_blocks - len(blocks)))]
        buffer = self._cache.gather_buffer(len(padded))
        return DecodeGroup(first, len(members), num_blocks, self._tensor(padded), NULL_BLOCK, mask, visible, buffer)

    def _chunk_span(self, chunk: Chunk, first: int) -> ChunkSpan:
        if chunk.start == 0:
            return ChunkSpan(first, chunk.length, 0)
        end = chunk.start + chunk.length
        blocks = chunk.sequence.blocks[: -(-end // self._cache.block_size)]
        columns = torch.arange(end, device=self._device)
        rows = torch.arange(chunk.start, end, device=self._device).unsqueeze(1)
        mask = torch.zeros((chunk.length, end), dtype=self._model.dtype, device=self._device)
        mask.masked_fill_(columns > rows, float("-inf"))
        buffer = self._cache.gather_buffer(len(blocks))
        return ChunkSpan(first, chunk.length, chunk.start, self._tensor(blocks), mask, buffer)

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def _first_rows(num_decodes: int, chunks: list[Chunk]) -> list[int]:
    rows = []
    row = num_decodes
    for chunk in chunks:
        rows.append(row)
        row += chunk.length
    return rows


def _are_neighbours(blocks: list[int]) -> bool:
    return blocks == list(range(blocks[0], blocks[0] + len(blocks)))
