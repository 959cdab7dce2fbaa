"""Checks of token ids. A prompt may hold a hundred thousand, on an event loop, so the passing case runs in C."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import cast

from pocketllm.errors import ConfigurationError


def are_token_ids(items: Iterable[object]) -> bool:
    """Whether all are whole numbers; booleans are none."""
    return all(issubclass(kind, int) and kind is not bool for kind in set(map(type, items)))


def in_vocabulary(items: Collection[object], vocab_size: int) -> bool:
    """Whether all are ids of a vocabulary of that size."""
    if not are_token_ids(items):
        return False
    ids = cast("Collection[int]", items)
    return not ids or (min(ids) >= 0 and max(ids) < vocab_size)


def check_token_ids(field: str, ids: Collection[object], vocab_size: int) -> None:
    """Refuse ids that a model has no row for.

    Called once, when a prompt is made; engines keep what the safety of their memory needs.

    Raises:
        ConfigurationError: ``param`` is ``field``.
    """
    if in_vocabulary(ids, vocab_size):
        return
    stranger = next(token for token in ids if not in_vocabulary((token,), vocab_size))
    raise ConfigurationError(
        f'"{field}" holds the token id {stranger!r}, but this model\'s ids are 0 to {vocab_size - 1}. '
        "Send ids of this model's own tokenizer.",
        param=field,
    )
