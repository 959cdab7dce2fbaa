"""Judge a recorded stream: rules S1 to S10, from events alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from pocketllm.testing.rules import Violation
from pocketllm.types import Finish, FinishReason, GenerationRequest, PromptReport, StepBatch, TokenFlag, TokenLogprob

REASONS = frozenset(str(reason) for reason in FinishReason)
ANSWERED = frozenset({"stop", "length", "tool_calls"})


class Row(msgspec.Struct, frozen=True):
    """One row of one sequence, taken out of its batch."""

    token: int
    flag: int
    logprob: TokenLogprob | None = None

    @property
    def has_token(self) -> bool:
        return not self.flag & TokenFlag.TEXT


Event = Row | PromptReport | Finish


def check_stream(
    batches: Sequence[StepBatch],
    request: GenerationRequest,
    *,
    vocab_size: int = 0,
    healthy: bool = True,
    complete: bool = True,
) -> list[Violation]:
    """Every stream rule that the events of ``request`` break; an empty list when there is none.

    Args:
        batches: what an engine posted, in order; rows of other requests are passed over.
        request: as the engine got it, with its choices and stop ids.
        vocab_size: ids from here on are outside the vocabulary; 0: not checked.
        healthy: the request is a good one, so that a final "error" is itself a violation.
        complete: the recording has ended, so that a missing final event is a violation.
    """
    violations = [violation for batch in batches for violation in check_batch(batch)]
    if violations:
        return violations  # the columns do not line up: nothing below would say anything true
    for choice in request.choices:
        events = list(events_of(batches, choice.handle))
        violations += _check_sequence(events, request, vocab_size=vocab_size, healthy=healthy, complete=complete)
    return violations


def check_batch(batch: StepBatch) -> Iterator[Violation]:
    """Columns of one length, and references that stay inside the batch."""
    num_rows = len(batch.handles)
    if not num_rows == len(batch.tokens) == len(batch.flags):
        lengths = f"{num_rows} handles, {len(batch.tokens)} tokens, {len(batch.flags)} flags"
        yield Violation("S7", f"a batch has columns of different lengths: {lengths}")
        return
    for name, rows in (("logprobs", batch.logprobs), ("extras", batch.extras)):
        seen: set[int] = set()
        for entry in rows:
            if not 0 <= entry.row < num_rows or entry.row in seen:
                yield Violation(
                    "S7", f"{name} names row {entry.row} of a batch with {num_rows} rows, or names it twice"
                )
            seen.add(entry.row)


def events_of(batches: Sequence[StepBatch], handle: int) -> Iterator[Event]:
    """The events of one sequence in order: of each batch the prompt reports, then the rows, then the final events."""
    for batch in batches:
        yield from (report for report in batch.prompts if report.handle == handle)
        if handle in batch.handles:
            logprobs = {entry.row: entry for entry in batch.logprobs}
            for row, owner in enumerate(batch.handles):
                if owner == handle:
                    yield Row(batch.tokens[row], batch.flags[row], logprobs.get(row))
        yield from (finish for finish in batch.finished if finish.handle == handle)


def _check_sequence(
    events: list[Event], request: GenerationRequest, *, vocab_size: int, healthy: bool, complete: bool
) -> Iterator[Violation]:
    finishes = [(position, event) for position, event in enumerate(events) if isinstance(event, Finish)]
    if len(finishes) > 1:
        yield Violation("S1", f"{len(finishes)} final events instead of one", finishes[1][0])
    if not finishes and complete:
        yield Violation("S1", f"no final event after {len(events)} events", len(events))
    end = finishes[0][0] if finishes else len(events)
    late = [position for position in range(end + 1, len(events)) if not isinstance(events[position], Finish)]
    if late:
        yield Violation("S2", f"{len(late)} events follow the final one", late[0])
    rows = [(position, event) for position, event in enumerate(events[:end]) if isinstance(event, Row)]
    yield from _check_rows(rows, request, vocab_size)
    yield from _check_reports(events[:end], request)
    if finishes:
        yield from _check_finish(finishes[0], [row for _, row in rows], request, healthy)


def _check_rows(rows: list[tuple[int, Row]], request: GenerationRequest, vocab_size: int) -> Iterator[Violation]:
    stop_ids, params = frozenset(request.stop_token_ids), request.sampling_params
    num_tokens = 0
    for position, row in rows:
        if not row.has_token:
            continue
        num_tokens += 1
        if row.token < 0 or (vocab_size and row.token >= vocab_size):
            yield Violation("S7", f"token id {row.token} is outside the vocabulary of {vocab_size}", position)
        flagged = bool(row.flag & TokenFlag.STOP)
        if flagged and row.token not in stop_ids:
            yield Violation("S6", f"token {row.token} is flagged STOP and is not a stop id of the request", position)
        if row.token in stop_ids and not flagged:
            yield Violation("S6", f"stop id {row.token} is not flagged STOP", position)
        if row.token in stop_ids and position != rows[-1][0]:
            yield Violation("S6", f"rows follow the stop id {row.token}", position)
        if num_tokens - 1 == params.max_tokens:
            yield Violation("S5", f"token {num_tokens} exceeds max_tokens = {params.max_tokens}", position)
        if row.logprob is None and params.logprobs and not flagged:
            yield Violation("S9", f"token {row.token} has no log-probability row", position)
        if row.logprob is not None and (flagged or not params.logprobs):
            why = "a stop id" if flagged else "a request that asks for none"
            yield Violation("S9", f"a log-probability row for {why}", position)


def _check_reports(events: list[Event], request: GenerationRequest) -> Iterator[Violation]:
    reports = [position for position, event in enumerate(events) if isinstance(event, PromptReport)]
    if len(reports) > 1:
        yield Violation("S8", f"{len(reports)} prompt reports", reports[1])
    if reports and any(isinstance(event, Row) for event in events[: reports[0]]):
        yield Violation("S8", "the prompt report comes after the first row", reports[0])
    for position in reports:
        report = events[position]
        if isinstance(report, PromptReport) and report.logprobs and not request.sampling_params.prompt_logprobs:
            yield Violation("S9", "prompt log probabilities for a request that asks for none", position)


def _check_finish(
    end: tuple[int, Finish], rows: list[Row], request: GenerationRequest, healthy: bool
) -> Iterator[Violation]:
    position, finish = end
    max_tokens = request.sampling_params.max_tokens
    num_tokens = sum(row.has_token for row in rows)
    stopped = bool(rows) and bool(rows[-1].flag & TokenFlag.STOP)
    if finish.reason not in REASONS:
        yield Violation("S3", f"finish reason {finish.reason!r} is none of {', '.join(sorted(REASONS))}", position)
    if finish.reason in ANSWERED and not rows:
        yield Violation("S4", f'the stream ends in "{finish.reason}" and is empty', position)
    if finish.reason == FinishReason.LENGTH and num_tokens != max_tokens:
        yield Violation("S5", f'"length" after {num_tokens} tokens with max_tokens = {max_tokens}', position)
    full = num_tokens == max_tokens and bool(rows) and rows[-1].has_token and request.constraint is None
    if full and finish.reason == FinishReason.STOP and not stopped:
        yield Violation("S5", f'"stop" instead of "length" after max_tokens = {max_tokens} tokens', position)
    if stopped and finish.reason != FinishReason.STOP:
        yield Violation("S6", f'the stream ends in "{finish.reason}" after a stop id', position)
    if finish.reason == FinishReason.ERROR and healthy:
        yield Violation("S10", f"a healthy request ended in an error: {finish.error}", position)
    if (finish.reason == FinishReason.ERROR) != bool(finish.error):
        yield Violation("S10", f'reason "{finish.reason}" with error text {finish.error!r}', position)
