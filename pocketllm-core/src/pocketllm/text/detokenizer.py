"""Token ids to text, a few at a time, with the same total as decoding everything at once.

Sans-IO. An instance follows one sequence and belongs to one thread.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"

# Enough for any character split over byte tokens. Past it a window decoder's U+FFFD is taken at its word, since a
# window that may grow without end would make the time quadratic.
_MAX_WINDOW_TOKENS = 16


class TextTokenizer(Protocol):
    """What the text pipeline needs of a tokenizer; :class:`pocketllm.checkpoint.Tokenizer` has it."""

    @property
    def decoder_kind(self) -> str:
        """``"byte_level"`` or ``"byte_fallback"``: the text is the UTF-8 of the tokens' bytes in a row, each maximal
        invalid part of it one U+FFFD (Unicode 15, section 3.9). ``"other"``: only :meth:`decode` knows."""

    @property
    def add_space_prefix(self) -> bool:
        """Whether one leading space of the whole text is taken off. Not read for decoder kind ``"other"``."""

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes the token adds; empty for an id past the vocabulary."""

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a control token, which has no part in the text."""

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of the whole sequence."""


class Detokenizer:
    """Incremental decoder of one sequence.

    Texts returned by :meth:`feed` and :meth:`finish`, joined, equal ``tokenizer.decode(all_ids)`` for every way of
    cutting the ids into calls. Only certain text is returned: an incomplete UTF-8 tail is held. Time is linear in the
    output. For decoder kind ``"other"`` the ids are decoded in a bounded window, which is exact for decoders that look
    back no further than the last token with text (WordPiece, Metaspace, BPE suffixes).

    Args:
        tokenizer: source of token bytes.
        skip_special: drop control tokens, as ``decode(..., skip_special=True)`` does.
        kept_ids: control tokens that stay visible all the same (a syntax's delimiters).
    """

    def __init__(self, tokenizer: TextTokenizer, *, skip_special: bool = True, kept_ids: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._kept_ids = frozenset(kept_ids)
        is_bytes = tokenizer.decoder_kind in ("byte_level", "byte_fallback")
        self._pieces = _BytePieces(tokenizer) if is_bytes else _WindowPieces(tokenizer)
        self._finished = False
        self.num_chars = 0
        """Characters returned so far."""
        self.last_token_start = 0
        """Offset in the whole text where the text of the last fed token begins. Tokens that share a character share the
        offset of that character."""

    def feed_one(self, token_id: int) -> str:
        """Add one token; return the text that became certain. Not to be called after :meth:`finish`."""
        if self._skip_special and self._tokenizer.is_special(token_id) and token_id not in self._kept_ids:
            self.last_token_start = self.num_chars
            return ""
        text, num_own_chars = self._pieces.add(token_id)
        self.num_chars += len(text)
        self.last_token_start = self.num_chars - num_own_chars
        return text

    def feed(self, token_ids: Sequence[int]) -> str:
        """Add tokens; return the text that became certain."""
        return "".join([self.feed_one(token_id) for token_id in token_ids])

    def finish(self) -> str:
        """Return the held tail as ``decode`` would show it. Later calls return an empty string."""
        if self._finished:
            return ""
        self._finished = True
        text = self._pieces.flush()
        self.num_chars += len(text)
        return text


class CumulativeDetokenizer:
    """The slow reference: decodes all ids at each call and returns what is new, holding back a trailing U+FFFD."""

    def __init__(self, tokenizer: TextTokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._ids: list[int] = []
        self._num_returned = 0

    def feed(self, token_ids: Sequence[int]) -> str:
        self._ids.extend(token_ids)
        return self._take(self._decode().rstrip(REPLACEMENT))

    def finish(self) -> str:
        return self._take(self._decode())

    def _decode(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special=self._skip_special)

    def _take(self, text: str) -> str:
        new = text[self._num_returned :]
        self._num_returned = max(self._num_returned, len(text))
        return new


class _BytePieces:
    """``add`` returns (text now certain, how many characters at its end are the token's own)."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._tail = b""
        self._strips_space = tokenizer.add_space_prefix

    def add(self, token_id: int) -> tuple[str, int]:
        data = self._tokenizer.token_bytes(token_id)
        if not self._tail and data.isascii():
            own = data.decode("ascii")
            if self._strips_space:
                own = self._stripped(own)
            return own, len(own)
        cut = ""
        if self._tail and data and not 0x80 <= data[0] < 0xC0:
            # The token cannot continue the character, so its own text begins after the U+FFFD. There are two after
            # half a surrogate, which the decoder keeps although nothing can complete it.
            cut, self._tail = self._tail.decode("utf-8", "replace"), b""
        data = self._tail + data
        own, num_consumed = codecs.utf_8_decode(data, "replace", False)
        self._tail = data[num_consumed:]
        text = self._stripped(cut + own)
        return text, min(len(own), len(text))

    def flush(self) -> str:
        tail, self._tail = self._tail, b""
        return self._stripped(tail.decode("utf-8", "replace"))

    def _stripped(self, text: str) -> str:
        if self._strips_space and text:
            self._strips_space = False
            return text.removeprefix(" ")
        return text


class _WindowPieces:
    """The text of a token is what ``decode`` adds to the text of the tokens shown before it."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._context_start = 0  # first id of the window
        self._shown_end = 0  # ids before it are in the text already returned
        self._shown_text = ""  # decode of the window up to there
        self._returned: list[str] = []

    def add(self, token_id: int) -> tuple[str, int]:
        self._ids.append(token_id)
        text = self._decode(self._context_start)
        is_full = len(self._ids) - self._shown_end >= _MAX_WINDOW_TOKENS
        new = text[len(self._shown_text) :]
        if not new or (text.endswith(REPLACEMENT) and not is_full):
            if is_full:
                self._advance()
            return "", 0
        self._advance()
        self._returned.append(new)
        return new, len(new)

    def flush(self) -> str:
        # The full decode repairs what a window could not see, as long as nothing returned has to be taken back.
        returned = "".join(self._returned)
        text = self._decode(0)
        if text.startswith(returned):
            return text[len(returned) :]
        return self._decode(self._context_start)[len(self._shown_text) :]

    def _decode(self, start: int) -> str:
        return self._tokenizer.decode(self._ids[start:], skip_special=False)

    def _advance(self) -> None:
        self._context_start = self._shown_end
        self._shown_end = len(self._ids)
        self._shown_text = self._decode(self._context_start)
