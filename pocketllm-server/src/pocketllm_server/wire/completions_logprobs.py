"""Log probabilities of the completions endpoint: the guide's ``content`` array and OpenAI's four parallel ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from pocketllm.types import LogprobEntry


class TokenBytes(Protocol):
    """What the server needs of a tokenizer to show a prompt."""

    @property
    def bos_token_id(self) -> int | None: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def token_text(self, token_id: int) -> str: ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = ...) -> str: ...


class Unranked(msgspec.Struct, frozen=True):
    """A token without a log probability: the first of a prompt has no predecessor."""

    token: str
    bytes: list[int]


Position = LogprobEntry | Unranked


class TextOffsets:
    """Where tokens begin in a text, in characters, exact also where a token is only a piece of a character."""

    def __init__(self, start: int = 0) -> None:
        self._num_chars = start  # characters begun so far

    def place(self, data: Sequence[int]) -> int:
        """The offset of the next token, whose bytes are ``data``."""
        # A token that begins with a continuation byte lies in the character that began before it.
        inside = bool(data) and data[0] & 0xC0 == 0x80
        start = self._num_chars - inside
        self._num_chars += sum(byte & 0xC0 != 0x80 for byte in data)
        return max(0, start)


def completion_logprobs(entries: Sequence[Position], offsets: TextOffsets | None = None) -> dict[str, Any]:
    """``offsets`` continues the positions of what was sent before."""
    offsets = offsets or TextOffsets()
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [_logprob(entry) for entry in entries],
        "top_logprobs": [_top(entry) for entry in entries],
        "text_offset": [offsets.place(entry.bytes) for entry in entries],
        "content": [_content(entry) for entry in entries],
    }


def prompt_positions(
    tokenizer: TokenBytes, token_ids: Sequence[int], ranked: Sequence[LogprobEntry | None], text: str
) -> tuple[list[Position], int]:
    """The positions of an echoed prompt, its first unranked, and the offset at which its tokens begin.

    A begin token that the tokenizer put in front of ``text`` stands in the list with no bytes of its own, and so does
    not move what follows.
    """
    positions: list[Position] = []
    data = bytearray()
    for index, token_id in enumerate(token_ids):
        entry = ranked[index] if index < len(ranked) else None
        if entry is not None:
            positions.append(entry)
            data += bytes(entry.bytes)
            continue
        added = (
            index == 0 and token_id == tokenizer.bos_token_id and not text.startswith(tokenizer.token_text(token_id))
        )
        raw = b"" if added else tokenizer.token_bytes(token_id)
        surface = tokenizer.token_text(token_id) if added else raw.decode("utf-8", errors="replace")
        positions.append(Unranked(surface, list(raw)))
        data += raw
    # Some tokenizers begin every text with a space, which decoding drops again.
    dropped = data.startswith(b" ") and not text.startswith(" ")
    return positions, -1 if dropped else 0


def _logprob(entry: Position) -> float | None:
    return entry.logprob if isinstance(entry, LogprobEntry) else None


def _top(entry: Position) -> dict[str, float] | None:
    return {item.token: item.logprob for item in entry.top_logprobs} if isinstance(entry, LogprobEntry) else None


def _content(entry: Position) -> dict[str, Any]:
    if isinstance(entry, LogprobEntry):
        return entry.as_dict()
    return {"token": entry.token, "logprob": None, "bytes": entry.bytes, "top_logprobs": []}
