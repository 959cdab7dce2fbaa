"""What lives beside the sampler: which tokens may come next."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection
from typing import Any

from pocketllm.errors import EngineError
from pocketllm.structured.token_table import TokenTable

_WORD_BITS = 32


def write_bits(address: int, num_words: int, ids: Collection[int], *, allowed: bool) -> None:
    """Set or clear the bits of ``ids`` in a mask row; ids past its end are left out."""
    words = (ctypes.c_uint32 * num_words).from_address(address)
    for token in ids:
        if 0 <= token < num_words * _WORD_BITS:
            bit = 1 << (token % _WORD_BITS)
            if allowed:
                words[token // _WORD_BITS] |= bit
            else:
                words[token // _WORD_BITS] &= ~bit


def allow_all(address: int, num_words: int, vocab_size: int) -> None:
    """Set the bits of all ``vocab_size`` tokens; the rest of the row is cleared."""
    ctypes.memset(address, 0, num_words * 4)
    num_full = min(vocab_size // _WORD_BITS, num_words)
    ctypes.memset(address, 0xFF, num_full * 4)
    write_bits(address, num_words, range(num_full * _WORD_BITS, vocab_size), allowed=True)


class Matcher:
    """Follows one sequence under one constraint.

    A token that ends the sequence is allowed exactly where the text so far satisfies the constraint. One thread at a
    time; the engine's.

    Args:
        library: an ``llguidance.LLMatcher`` of its own.
        renew: gives another one, at the start of the text and with a fresh lexer. The library's matchers for one
            constraint share a lexer, whose states they use up together.
        table: the vocabulary it was made for.
        stop_ids: tokens that end the sequence, as the request has them. With none, the sequence ends by
            :attr:`is_done`.
    """

    def __init__(self, library: Any, renew: Callable[[], Any], table: TokenTable, stop_ids: Collection[int]) -> None:
        self._library = library
        self._renew = renew
        self._table = table
        self._stop_ids = frozenset(stop_ids)
        self._never = table.end_ids | self._stop_ids
        self._row = (ctypes.c_int32 * table.num_words)()
        self._zeros = bytes(table.num_words * 4)
        self._tokens: list[int] = []
        """What the library consumed: the accepted tokens but the stop id."""
        self._stopped = False

    @property
    def is_done(self) -> bool:
        """Nothing may follow but a stop id: the text satisfies the constraint and cannot grow, or has ended."""
        return self._stopped or (bool(self._library.is_stopped()) and self.allows_eos)

    @property
    def allows_eos(self) -> bool:
        """Whether the text so far satisfies the constraint."""
        return not self._stopped and not self._library.is_error() and bool(self._library.is_accepting())

    def fill_mask(self, address: int, num_words: int) -> None:
        """Write ``num_words`` int32 words at ``address``: bit i of word w is 1 when token 32 w + i may come next.

        Raises:
            EngineError: no token may (the vocabulary cannot spell what has to follow, or the constraint has outgrown
                its limits). The sequence cannot continue.
        """
        native = self._table.num_words
        direct = num_words == native and address % 4 == 0
        target = address if direct else ctypes.addressof(self._row)
        if not self._compute(target, native):
            self._start_again()
            if not self._compute(target, native):
                raise EngineError(f"The constraint cannot be followed any further: {self._complaint()}")
        complete = self.allows_eos
        write_bits(target, native, self._never, allowed=False)
        if complete:
            write_bits(target, native, self._stop_ids, allowed=True)
        if not direct:
            ctypes.memset(address, 0, num_words * 4)
            ctypes.memmove(address, target, min(native, num_words) * 4)
        if ctypes.string_at(target, native * 4) == self._zeros and not (complete and not self._stop_ids):
            raise EngineError("No token of this vocabulary continues the text under its constraint.")

    def _compute(self, address: int, num_words: int) -> bool:
        """Have the library write its mask. False: it is in an error, and what it wrote means nothing."""
        if self._stopped or (self._library.is_stopped() and not self._library.is_error()):
            ctypes.memset(address, 0, num_words * 4)
            return True
        self._library.unsafe_compute_mask_ptr(address, num_words * 4)
        return not self._library.is_error()

    def _start_again(self) -> None:
        self._library = self._renew()
        self._library.try_consume_tokens(self._tokens)

    def _complaint(self) -> str:
        return " ".join(str(self._library.get_error()).replace("<non-verbose/>", "").split())[:300]

    def accept(self, token_id: int) -> bool:
        """``token_id`` was generated. False: it was not allowed, and the matcher is where it was before."""
        if self._stopped:
            return False
        if token_id in self._stop_ids:
            if not self.allows_eos:
                return False
            self._stopped = True
            return True
        if token_id in self._never or token_id < 0 or token_id >= self._table.vocab_size:
            return False
        if not self._consume(token_id):
            return False
        self._tokens.append(token_id)
        return True

    def _consume(self, token_id: int) -> bool:
        taken = not self._library.is_stopped() and self._library.try_consume_tokens([token_id])
        if not taken and self._library.is_error():
            self._start_again()
            taken = not self._library.is_stopped() and self._library.try_consume_tokens([token_id])
        return bool(taken)

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` accepted tokens.

        Raises:
            ValueError: fewer were accepted.
        """
        num_accepted = len(self._tokens) + self._stopped
        if not 0 <= num_tokens <= num_accepted:
            raise ValueError(f"cannot take back {num_tokens} of {num_accepted} tokens")
        num_consumed = num_tokens - (self._stopped and num_tokens > 0)
        self._stopped = self._stopped and num_tokens == 0
        if num_consumed == 0:
            return
        del self._tokens[-num_consumed:]
        if not self._library.rollback(num_consumed):
            self._start_again()
            if self._library.is_error():
                raise EngineError(f"The constraint cannot be rolled back: {self._complaint()}")
