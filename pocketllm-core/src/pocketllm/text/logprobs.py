"""Log probabilities in OpenAI's shape: the surface of one token and its exact bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pocketllm.types import LogprobEntry


class TokenBytes(Protocol):
    def token_bytes(self, token_id: int) -> bytes: ...


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
