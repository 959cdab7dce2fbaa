"""Log probabilities in OpenAI's shape: the surface of one token and its exact bytes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

import msgspec

from pocketllm.types import LogprobEntry


class TokenBytes(Protocol):
    """The one method of a tokenizer that is used here."""

    def token_bytes(self, token_id: int) -> bytes: ...


class PackedLogprob(msgspec.Struct, frozen=True, gc=False):
    """One position as an output log keeps it; with 20 alternatives it takes a tenth of the memory of its entry.

    A log is kept whole until its request ends, however slowly it is read, so entries are made when they are read.
    """

    tokenizer: TokenBytes
    token_id: int
    logprob: float
    top_ids: array[int]
    top_logprobs: array[float]

    def render(self) -> LogprobEntry:
        top = tuple(zip(self.top_ids, self.top_logprobs, strict=True))
        return render_logprob(self.tokenizer, self.token_id, self.logprob, top)


def pack_logprob(
    tokenizer: TokenBytes, token_id: int, logprob: float, top: Sequence[tuple[int, float]]
) -> PackedLogprob:
    """``top`` holds (token id, log probability) pairs, best first."""
    ids, values = array("q", [token for token, _ in top]), array("d", [value for _, value in top])
    return PackedLogprob(tokenizer, token_id, logprob, ids, values)


def render_logprob(
    tokenizer: TokenBytes, token_id: int, logprob: float, top: Sequence[tuple[int, float]]
) -> LogprobEntry:
    """One entry with its ranked alternatives; a piece of a multi-byte character shows U+FFFD, its bytes stay exact."""
    data = tokenizer.token_bytes(token_id)
    return LogprobEntry(
        token=data.decode("utf-8", errors="replace"),
        logprob=logprob,
        bytes=list(data),
        token_id=token_id,
        top_logprobs=[render_logprob(tokenizer, other, value, ()) for other, value in top],
    )
