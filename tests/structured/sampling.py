"""Driving matchers without a model: random walks through masks, and whole texts."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence

from pocketllm.checkpoint import Tokenizer
from pocketllm.structured import TokenMatcher

_BITS = [[bit for bit in range(8) if byte >> bit & 1] for byte in range(256)]
# What a text is likely to end with; a walk that never takes it goes on for ever.
_CLOSING = b'"}]>'


def allowed_ids(matcher: TokenMatcher, vocab_size: int) -> list[int]:
    """The tokens of the next mask."""
    num_words = -(-vocab_size // 32)
    row = (ctypes.c_uint32 * num_words)()
    matcher.fill_mask(ctypes.addressof(row), num_words)
    found = [8 * place + bit for place, byte in enumerate(bytes(row)) if byte for bit in _BITS[byte]]
    assert not found or found[-1] < vocab_size
    return found


def walk(
    matcher: TokenMatcher,
    tokenizer: Tokenizer,
    stop_ids: Sequence[int],
    randomness: random.Random,
    *,
    max_tokens: int = 120,
    endings: Sequence[bytes] = (),
) -> bytes | None:
    """One random completion: its bytes when it ended by a stop id, None when it ran out of tokens.

    ``endings`` are begun now and then, and finished once begun, so that free text between tags does not go on for ever.
    """
    text: list[bytes] = []
    stop = frozenset(stop_ids)
    for index in range(max_tokens):
        ids = allowed_ids(matcher, tokenizer.vocab_size)
        ends = [token for token in ids if token in stop]
        # Later in the walk, what ends or closes something is taken more often.
        hurry = index / max_tokens
        if ends and (len(ends) == len(ids) or randomness.random() < 0.2 + hurry):
            token = ends[0]
        else:
            # A sample will do; large vocabularies have more than need be looked at.
            others = [token for token in randomness.sample(ids, min(len(ids), 400)) if token not in stop] or ids
            closing = [token for token in others if tokenizer.token_bytes(token)[:1] in map(_byte, _CLOSING)]
            if endings and randomness.random() < 0.9:
                begun = randomness.choice(endings)[:1] if randomness.random() < 0.2 + hurry else None
                wanted = _next_byte(b"".join(text[-40:]), endings) or begun
                others = [token for token in others if tokenizer.token_bytes(token) == wanted] or others
            token = randomness.choice(
                closing if closing and not endings and randomness.random() < 0.15 + hurry else others
            )
        assert matcher.accept(token), (token, b"".join(text))
        if token in stop:
            assert matcher.is_done
            return b"".join(text)
        text.append(tokenizer.token_bytes(token))
    return None


def _next_byte(text: bytes, endings: Sequence[bytes]) -> bytes | None:
    """What continues the ending that ``text`` is in the middle of."""
    for ending in endings:
        for size in range(len(ending) - 1, 0, -1):
            if text.endswith(ending[:size]):
                return ending[size : size + 1]
    return None


def _byte(value: int) -> bytes:
    return bytes((value,))


def byte_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """``text`` as single-byte tokens of the byte-level vocabulary, whose ids are the bytes."""
    return list(text.encode())


def accepts(matcher: TokenMatcher, ids: Sequence[int]) -> bool:
    """Whether the matcher follows all of ``ids`` and may end there."""
    return all(matcher.accept(token) for token in ids) and matcher.allows_eos
