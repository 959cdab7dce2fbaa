"""Checks of token ids. A prompt may hold a hundred thousand, on an event loop, so the passing case runs in C."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import cast


def are_token_ids(items: Iterable[object]) -> bool:
    """Whether all are whole numbers; booleans are none."""
    return all(issubclass(kind, int) and kind is not bool for kind in set(map(type, items)))


def in_vocabulary(items: Collection[object], vocab_size: int) -> bool:
    """Whether all are ids of a vocabulary of that size."""
    if not are_token_ids(items):
        return False
    ids = cast("Collection[int]", items)
    return not ids or (min(ids) >= 0 and max(ids) < vocab_size)
