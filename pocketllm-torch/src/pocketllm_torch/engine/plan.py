"""What the scheduler chose for a step, and the plain data that is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pocketllm_torch.engine.sequence import Sequence
from pocketllm_torch.engine.step import Span, StepInput


@dataclass(frozen=True)
class Chunk:
    """Positions ``start`` to ``start + length`` of a sequence whose prompt (or replay) is being computed."""

    sequence: Sequence
    start: int
    length: int

    @property
    def completes(self) -> bool:
        """True when the next token can be sampled behind this chunk."""
        return self.start + self.length == len(self.sequence.tokens)


@dataclass
class StepPlan:
    """The work of one step: ``decodes`` compute their newest token and their ``drafts``, by handle, behind it."""

    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    drafts: Mapping[int, list[int]] = field(default_factory=dict)
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    slot_copies: list[tuple[int, int]] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        return self.decodes + [chunk.sequence for chunk in self.chunks]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    def __bool__(self) -> bool:
        return bool(self.decodes or self.chunks)


@dataclass(frozen=True)
class Work:
    """A plan as plain data: ``members[i]`` is the sequence of span i."""

    step: StepInput
    members: list[Sequence]


def work_of(plan: StepPlan, block_size: int, *, replays_one_by_one: bool = False) -> Work:
    """The plan's spans in the order that :class:`StepInput` asks for.

    Args:
        replays_one_by_one: generated tokens that are computed again are computed as they were the first time.
    """
    singles: list[tuple[Sequence, Span]] = []
    others: list[tuple[Sequence, Span]] = []
    for sequence in plan.decodes:
        draft = plan.drafts.get(sequence.handle, [])
        span = _decode(sequence, draft, block_size)
        (others if draft else singles).append((sequence, span))
    for chunk in plan.chunks:
        is_decode = replays_one_by_one and chunk.start >= chunk.sequence.num_prompt_tokens
        span = _prompt(chunk, block_size, is_decode)
        (singles if span.is_single else others).append((chunk.sequence, span))
    singles.sort(key=lambda item: len(item[1].blocks))
    both = singles + others
    return Work(
        StepInput([span for _, span in both], plan.block_copies, plan.slot_copies), [sequence for sequence, _ in both]
    )


def _decode(sequence: Sequence, draft: list[int], block_size: int) -> Span:
    start = sequence.num_computed
    tokens = [sequence.tokens[start], *draft]
    return Span(
        tokens,
        start,
        _blocks(sequence, start + len(tokens), block_size),
        sequence.slot,
        is_decode=True,
        num_draft=len(draft),
        num_logits=len(tokens),
    )


def _prompt(chunk: Chunk, block_size: int, is_decode: bool) -> Span:
    sequence, end = chunk.sequence, chunk.start + chunk.length
    targets: list[int] = []
    if sequence.wants_prompt_logprobs:
        # Row p predicts position p + 1; the last row of the prompt predicts the answer.
        targets = sequence.tokens[chunk.start + 1 : min(end, sequence.num_prompt_tokens - 1) + 1]
    return Span(
        sequence.tokens[chunk.start : end],
        chunk.start,
        _blocks(sequence, end, block_size),
        sequence.slot,
        is_decode=is_decode,
        num_logits=int(chunk.completes),
        targets=targets,
        num_top=sequence.request.sampling_params.num_top_logprobs if targets else 0,
    )


def _blocks(sequence: Sequence, num_positions: int, block_size: int) -> list[int]:
    return sequence.blocks[: -(-num_positions // block_size)]
