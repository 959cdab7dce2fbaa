"""Checks of token ids. A prompt may hold a hundred thousand, on an event loop, so the passing case runs in C."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def are_token_ids(items: Iterable[object]) -> bool:
    """Whether all are whole numbers; booleans are none."""
    return all(issubclass(kind, int) and kind is not bool for kind in set(map(type, items)))


def in_vocabulary(items: Collection[object], vocab_size: int) -> bool:
    """Whether all are ids of a vocabulary of that size."""
    return are_token_ids(items) and (not items or (min(items) >= 0 and max(items) < vocab_size))  # type: ignore[type-var, operator]  # they are ints
