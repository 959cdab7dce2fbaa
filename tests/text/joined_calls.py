"""What a stream of call deltas adds up to."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pocketllm.text.tool_calls import CallDelta


class JoinedCall(msgspec.Struct, frozen=True):
    """All deltas of one call."""

    index: int
    id: str
    name: str
    arguments: str


def join_calls(deltas: Iterable[CallDelta]) -> tuple[JoinedCall, ...]:
    """Add up deltas, in order of their index."""
    heads: dict[int, CallDelta] = {}
    pieces: dict[int, list[str]] = {}
    for delta in deltas:
        if delta.name is not None:
            heads[delta.index] = delta
        pieces.setdefault(delta.index, []).append(delta.arguments_delta)
    return tuple(
        JoinedCall(index, head.id or "", head.name or "", "".join(pieces[index])) for index, head in heads.items()
    )
