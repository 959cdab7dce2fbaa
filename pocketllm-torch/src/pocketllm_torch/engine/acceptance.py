"""From a step's logits to the tokens that each sequence takes: one, and one more for each proposal that came true.

A proposal is accepted when it is the token that its sequence samples there anyway. The row behind it was computed with
it in the cache, so the next token is sampled from that row. Answers are the same with any drafter.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from pocketllm_torch.engine.plan import Work
from pocketllm_torch.engine.sampler import Sampler
from pocketllm_torch.engine.sequence import Sequence


class SampleRow(NamedTuple):
    """Where a sequence's first row of logits is, and what was proposed behind the token that it gives."""

    sequence: Sequence
    row: int
    draft: list[int]


def sample_rows(work: Work) -> list[SampleRow]:
    """The sequences that get a token from this step, in the order of their logits."""
    rows: list[SampleRow] = []
    row = 0
    for sequence, span in zip(work.members, work.step.spans, strict=True):
        if span.num_logits:
            draft = span.tokens[-span.num_draft :] if span.num_draft else []
            rows.append(SampleRow(sequence, row, draft))
            row += span.num_logits
    return rows


def sample(sampler: Sampler, logits: torch.Tensor, rows: list[SampleRow]) -> list[list[int]]:
    """The tokens that each of ``rows`` takes, at least one.

    Args:
        logits: raw logits, float32 [R, vocab].

    A sequence whose constraint fails has its :attr:`Sequence.error` set, and its last token means nothing.
    """
    first = sampler.sample(rows_of(logits, [row.row for row in rows]), [row.sequence for row in rows])
    taken = [[token] for token in first]
    ahead = 1
    pending = [index for index, row in enumerate(rows) if row.draft]
    while pending := [index for index in pending if _came_true(rows[index], taken[index])]:
        chosen = rows_of(logits, [rows[index].row + ahead for index in pending])
        tokens = sampler.sample(chosen, [rows[index].sequence for index in pending], num_ahead=ahead)
        for index, token in zip(pending, tokens, strict=True):
            taken[index].append(token)
        ahead += 1
    return taken


def rows_of(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """``logits`` [len(rows), vocab]; the same tensor where all rows are wanted in order."""
    if rows == list(range(logits.shape[0])):
        return logits
    return logits.index_select(0, torch.tensor(rows, dtype=torch.int64, device=logits.device))


def _came_true(row: SampleRow, taken: list[int]) -> bool:
    """Whether the newest token is the one proposed, so that the row behind it can be sampled from."""
    place = len(taken) - 1
    if place >= len(row.draft) or taken[place] != row.draft[place]:
        return False
    return row.sequence.error is None and row.sequence.end_behind(taken) is None
