"""What a step computes, as plain numbers, and what comes back.

A step can be encoded and sent: every process that holds the model (or its part of it) executes the same one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import torch

from pocketllm.types import TokenLogprob


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Neighbouring positions of one sequence, one row each.

    Row i computes ``tokens[i]`` at position ``start + i``. ``blocks`` lists the sequence's blocks up to the last of
    them. ``slot`` is the sequence's place in the batch, where a recurrent state lies.
    """

    tokens: list[int]
    start: int
    blocks: list[int]
    slot: int
    is_decode: bool = False
    """The first token was generated: it is computed as it was, or would have been, when it was the newest."""
    num_draft: int = 0
    """How many of the last tokens are proposals, which may turn out to be others."""
    num_logits: int = 0
    """Of how many of the last rows the logits are wanted."""
    targets: list[int] = []
    """The tokens behind the first rows, whose log probabilities are wanted."""
    num_top: int = 0
    """Alternatives to list beside each of ``targets``."""

    @property
    def is_single(self) -> bool:
        """One generated token, which is computed together with those of other sequences."""
        return self.is_decode and len(self.tokens) == 1


class StepInput(msgspec.Struct, frozen=True, array_like=True):
    """One step. Single spans come first, in the order of their numbers of blocks.

    Copies of blocks and slots, as pairs of source and target, are made before anything is computed.
    """

    spans: list[Span]
    block_copies: list[tuple[int, int]] = []
    slot_copies: list[tuple[int, int]] = []


@dataclass
class StepOutput:
    """What a step computed.

    ``logits`` float32 [R, vocab] are the rows that were asked for, span by span; None without any. ``prompt_logprobs``
    are those of the spans with targets, by the span's index; their ``row`` is a position of the prompt.
    """

    logits: torch.Tensor | None = None
    prompt_logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)


class Executor(Protocol):
    """Runs steps: one model in this process today.

    With several ranks, each has one, loaded with its shard of the weights; the first broadcasts the step, all execute
    it in the same order, and the first alone returns logits.
    """

    def execute(self, step: StepInput) -> StepOutput:
        """Compute every row and store its keys, values and states. Threads: one at a time."""
        ...
