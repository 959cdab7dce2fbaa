"""From the tokens of a step to its events: who ends, and what is reported."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from pocketllm.types import Finish, FinishReason, PromptReport, StepBatch, TokenFlag, TokenLogprob
from pocketllm_torch.engine.acceptance import SampleRow, rows_of
from pocketllm_torch.engine.logprobs import token_logprobs
from pocketllm_torch.engine.scheduler import Scheduler
from pocketllm_torch.engine.sequence import Sequence

_NONE, _STOP = int(TokenFlag.NONE), int(TokenFlag.STOP)


@dataclass
class Outcome:
    """What a step adds to the stream of events. Columns have one entry per token; ``rows`` are their rows of logits."""

    handles: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompts: list[PromptReport] = field(default_factory=list)
    finished: list[Finish] = field(default_factory=list)
    ended: list[Sequence] = field(default_factory=list)

    @property
    def batch(self) -> StepBatch:
        return StepBatch(
            handles=self.handles,
            tokens=self.tokens,
            flags=self.flags,
            logprobs=self.logprobs,
            prompts=self.prompts,
            finished=self.finished,
        )

    def __bool__(self) -> bool:
        return bool(self.handles or self.finished)

    def end(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        self.finished.append(Finish(sequence.handle, str(reason), error))
        self.ended.append(sequence)


def commit(scheduler: Scheduler, logits: torch.Tensor, rows: list[SampleRow], taken: list[list[int]]) -> Outcome:
    """Append each sequence's tokens to it, and note the events.

    Args:
        logits: raw logits, float32 [R, vocab], that ``rows`` point into.
        taken: tokens per row, from :func:`~pocketllm_torch.engine.acceptance.sample`.
    """
    outcome = Outcome()
    for row, tokens in zip(rows, taken, strict=True):
        sequence = row.sequence
        if sequence.error is not None:
            tokens = tokens[:-1]
        reason = sequence.end_behind(tokens) if tokens else None
        if tokens:
            _take(scheduler, outcome, row, tokens)
        if sequence.error is not None:
            outcome.end(sequence, FinishReason.ERROR, sequence.error)
        elif reason is not None:
            outcome.end(sequence, reason)
    if any(row.sequence.request.sampling_params.logprobs for row in rows):
        outcome.logprobs = _logprobs(logits, outcome, {row.sequence.handle: row.sequence for row in rows})
    return outcome


def _take(scheduler: Scheduler, outcome: Outcome, row: SampleRow, tokens: list[int]) -> None:
    sequence = row.sequence
    entries = scheduler.take_prompt_report(sequence)
    if entries is not None:
        outcome.prompts.append(PromptReport(sequence.handle, 0, entries))
    scheduler.commit(sequence, tokens)
    for ahead, token in enumerate(tokens):
        outcome.handles.append(sequence.handle)
        outcome.tokens.append(token)
        outcome.flags.append(_STOP if token in sequence.stop_ids else _NONE)
        outcome.rows.append(row.row + ahead)


def _logprobs(logits: torch.Tensor, outcome: Outcome, sequences: dict[int, Sequence]) -> list[TokenLogprob]:
    """Those of the tokens whose requests want them, but for a stop token, which is not a part of the text."""
    params = [sequences[handle].request.sampling_params for handle in outcome.handles]
    places = [
        place
        for place, flag in enumerate(outcome.flags)
        if params[place].logprobs and flag != _STOP
    ]  # fmt: skip
    if not places:
        return []
    chosen = rows_of(logits, [outcome.rows[place] for place in places])
    num_top = [params[place].num_top_logprobs for place in places]
    entries = token_logprobs(chosen, [outcome.tokens[place] for place in places], num_top)
    return [TokenLogprob(place, entry.logprob, entry.top) for place, entry in zip(places, entries, strict=True)]
