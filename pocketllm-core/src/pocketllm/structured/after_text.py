"""A constraint that begins after the reasoning."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from pocketllm.structured.matcher import allow_all, write_bits

if TYPE_CHECKING:
    from pocketllm.checkpoint import Tokenizer

_LAYOUT = b" \t\r\n"
_MAX_PADDING_TOKENS = 4


class TokenMatcher(Protocol):
    """The contract between a constraint and a sampler; see :class:`pocketllm.structured.Matcher`."""

    @property
    def is_done(self) -> bool: ...
    @property
    def allows_eos(self) -> bool: ...
    def fill_mask(self, address: int, num_words: int) -> None: ...
    def accept(self, token_id: int) -> bool: ...
    def rollback(self, num_tokens: int) -> None: ...


class AfterText:
    """Lets everything pass until ``after`` was generated, then follows ``matcher``.

    Stop ids are not allowed before: an answer that never came would satisfy no constraint. White space right after the
    tag belongs to neither side. A token that holds the tag and the beginning of an answer is not allowed, since the
    matcher follows whole tokens.

    Args:
        matcher: takes over after the tag.
        tokenizer: the vocabulary.
        after: the tag that ends the reasoning, as text.
        opening: when not empty, the reasoning is still to begin: the first token is either this one, or already one of
            ``matcher``'s. Must be a single token of the vocabulary to have effect.
        stop_ids: as for the matcher.
    """

    def __init__(
        self,
        matcher: TokenMatcher,
        tokenizer: Tokenizer,
        *,
        after: str,
        opening: str = "",
        stop_ids: Collection[int] = (),
    ) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._tag = after.encode()
        self._stop_ids = frozenset(stop_ids)
        self._opening_id = tokenizer.token_id(opening) if opening else None
        self._tokens = _tokens_for(tokenizer, self._tag)
        # Before the tag the tail is what of it was written; None once the matcher follows.
        self._tail: bytes | None = b"" if not opening else None
        self._may_open = self._opening_id is not None
        self._num_padding = 0
        """Tokens of white space that may still come before the answer."""
        self._history: list[tuple[bytes | None, bool, int, bool]] = []

    @property
    def is_done(self) -> bool:
        return self._tail is None and self._matcher.is_done

    @property
    def allows_eos(self) -> bool:
        return self._tail is None and self._matcher.allows_eos

    def fill_mask(self, address: int, num_words: int) -> None:
        """As :meth:`Matcher.fill_mask`."""
        if self._tail is None:
            self._matcher.fill_mask(address, num_words)
            if self._may_open and self._opening_id is not None:
                write_bits(address, num_words, (self._opening_id,), allowed=True)
            if self._num_padding:
                write_bits(address, num_words, self._tokens.blank, allowed=True)
            return
        allow_all(address, num_words, self._tokenizer.vocab_size)
        write_bits(address, num_words, self._stop_ids, allowed=False)
        write_bits(address, num_words, self._tokens.past(self._tail), allowed=False)

    def accept(self, token_id: int) -> bool:
        """As :meth:`Matcher.accept`."""
        before = (self._tail, self._may_open, self._num_padding)
        consumed = False
        if self._tail is None:
            if self._may_open and token_id == self._opening_id:
                self._tail = b""
            elif self._matcher.accept(token_id):
                consumed, self._num_padding = True, 0
            elif self._num_padding and token_id in self._tokens.blank:
                self._num_padding -= 1
            else:
                return False
        elif token_id in self._stop_ids or token_id in self._tokens.past(self._tail):
            return False
        else:
            self._read(self._tokenizer.token_bytes(token_id))
        self._may_open = False
        self._history.append((*before, consumed))
        return True

    def _read(self, piece: bytes) -> None:
        text = (self._tail or b"") + piece
        place = text.find(self._tag)
        if place >= 0:
            self._tail, self._num_padding = None, _MAX_PADDING_TOKENS
            return
        # All that matters of the past is how much of the tag it may already hold.
        keep = next((size for size in range(len(self._tag) - 1, 0, -1) if self._tag.startswith(text[-size:])), 0)
        self._tail = text[len(text) - min(keep, len(text)) :]

    def rollback(self, num_tokens: int) -> None:
        """As :meth:`Matcher.rollback`."""
        if not 0 <= num_tokens <= len(self._history):
            raise ValueError(f"cannot take back {num_tokens} of {len(self._history)} tokens")
        if num_tokens == 0:
            return
        taken = self._history[-num_tokens:]
        del self._history[-num_tokens:]
        self._tail, self._may_open, self._num_padding, _ = taken[0]
        self._matcher.rollback(sum(entry[3] for entry in taken))


class _TagTokens:
    """What a vocabulary has to do with a tag; made once for each, in one pass over the tokens."""

    def __init__(self, tokenizer: Tokenizer, tag: bytes) -> None:
        pieces = tokenizer.all_token_bytes()
        self.blank = frozenset(token for token, piece in enumerate(pieces) if piece and not piece.strip(_LAYOUT))
        self._tag = tag
        # Only a token that holds the tag's last byte, and more after it, can go past the tag.
        self._candidates = {token: piece for token, piece in enumerate(pieces) if tag[-1] in piece[:-1]}
        self._past: dict[bytes, frozenset[int]] = {}

    def past(self, tail: bytes) -> frozenset[int]:
        """Where ``tail`` of the tag was written: tokens that complete it and continue with more than white space."""
        found = self._past.get(tail)
        if found is None:
            passing = (token for token, piece in self._candidates.items() if self._goes_past(tail + piece))
            found = self._past[tail] = frozenset(passing)
        return found

    def _goes_past(self, text: bytes) -> bool:
        place = text.find(self._tag)
        return place >= 0 and text[place + len(self._tag) :].strip(_LAYOUT) != b""


_tag_tokens: weakref.WeakKeyDictionary[Tokenizer, dict[bytes, _TagTokens]] = weakref.WeakKeyDictionary()


def _tokens_for(tokenizer: Tokenizer, tag: bytes) -> _TagTokens:
    tags = _tag_tokens.setdefault(tokenizer, {})
    found = tags.get(tag)
    if found is None:
        found = tags[tag] = _TagTokens(tokenizer, tag)
    return found
