"""The numbers of tool calls in one choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class CallPiece(msgspec.Struct, frozen=True):
    """A piece of call ``number``, counted from 0. ``delta`` is what core or a backend said, in OpenAI's shape."""

    number: int
    delta: Mapping[str, Any]

    @property
    def id(self) -> str | None:
        """Of a call's first piece."""
        return self.delta.get("id")

    @property
    def name(self) -> str:
        return self.delta.get("function", {}).get("name") or ""

    @property
    def arguments(self) -> str:
        """What this piece adds to them."""
        return self.delta.get("function", {}).get("arguments") or ""

    def as_dict(self) -> Mapping[str, Any]:
        """As a stream of chat shows it; what a backend brought is forwarded unparsed."""
        return self.delta if "index" in self.delta else {"index": self.number, **self.delta}


class CallNumbers:
    """Core numbers the calls that it finds in a text. A whole call that a backend brought has no number: it gets the
    next one."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def pieces(self, deltas: Sequence[Mapping[str, Any]]) -> list[CallPiece]:
        return [self._piece(delta) for delta in deltas]

    def _piece(self, delta: Mapping[str, Any]) -> CallPiece:
        number = delta.get("index", len(self._known))
        self._known.add(number)
        return CallPiece(number, delta)
