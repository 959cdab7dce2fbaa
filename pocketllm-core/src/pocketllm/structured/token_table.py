"""A checkpoint's vocabulary as the matcher library takes it."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from pocketllm.errors import PocketLLMError

if TYPE_CHECKING:
    from pocketllm.checkpoint import Tokenizer

logger = logging.getLogger(__name__)

_MAX_TABLES_PER_TOKENIZER = 4
_MARK = b"\xff"
_tables: weakref.WeakKeyDictionary[Tokenizer, OrderedDict[frozenset[int], TokenTable]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class TokenTable:
    """The bytes of every token, and the library's index over them.

    Making one takes about 2 µs per token. Immutable; any thread.

    Args:
        tokenizer: the vocabulary.
        text_ids: control tokens that count as their text here; the other control tokens match no text.

    Attributes:
        vocab_size: tokens, as the tokenizer counts them.
        num_words: int32 words in a mask row.
        end_ids: what the library itself takes for the end of the text; :class:`~pocketllm.structured.Matcher` goes by
            the ids it is given instead.
        library: the ``llguidance.LLTokenizer``.
    """

    def __init__(self, tokenizer: Tokenizer, text_ids: Collection[int] = ()) -> None:
        import llguidance

        self.vocab_size = tokenizer.vocab_size
        special = {token for token in tokenizer.special_ids if token < self.vocab_size}
        wrapper = _Vocabulary(tokenizer, frozenset(special.difference(text_ids)))
        # The library takes any object of this shape; its annotations name a class of its own.
        library: Any = llguidance.LLTokenizer
        self.library: Any = library(wrapper, n_vocab=self.vocab_size, eos_token=[wrapper.eos_token_id])
        self._vocabulary = wrapper
        self.num_words = -(-self.vocab_size // 32)
        self.end_ids = frozenset({wrapper.eos_token_id})

    def marked_tokens(self) -> list[bytes]:
        """The bytes of every token as the library's C interface takes them: a byte that no text has marks the control
        tokens."""
        special = set(self._vocabulary.special_token_ids)
        return [_MARK + piece if token in special else piece for token, piece in enumerate(self._vocabulary.tokens)]


class _Vocabulary:
    """The shape the library asks for: these attributes, and a call that tokenizes text."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, special: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.special_token_ids = sorted(special)
        # The library needs some end token. Without one, an id that has no bytes of its own serves.
        self.eos_token_id = 0 if tokenizer.eos_token_id is None else tokenizer.eos_token_id
        self.tokens = tokenizer.all_token_bytes()
        self._hide_byte_twins(special)
        self._ids = {piece: token for token, piece in enumerate(self.tokens) if piece and token not in special}
        self._max_bytes = max(map(len, self._ids), default=1)

    def _hide_byte_twins(self, special: frozenset[int]) -> None:
        """Where a byte token (``<0x0A>``) repeats an ordinary token, only the latter may be used, as in training."""
        first: dict[bytes, int] = {}
        for token, piece in [(token, piece) for token, piece in enumerate(self.tokens) if len(piece) == 1]:
            if token in special:
                continue
            other = first.setdefault(piece, token)
            if other == token:
                continue
            is_byte = self._tokenizer.token_text(other).startswith("<0x")
            hidden, kept = (other, token) if is_byte else (token, other)
            self.tokens[hidden] = b""
            first[piece] = kept

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokens whose bytes are exactly ``text``; the library asks where only one text can follow."""
        raw = text.encode() if isinstance(text, str) else bytes(text)
        ids = self._tokenizer.encode(raw.decode("utf-8", "replace"), add_bos=False, parse_special=False)
        if b"".join(self.tokens[token] for token in ids) == raw:
            return ids
        # SentencePiece puts a space in front; the longest pieces, one after the other, do without.
        found, position = [], 0
        while position < len(raw):
            for length in range(min(self._max_bytes, len(raw) - position), 0, -1):
                token = self._ids.get(raw[position : position + length])
                if token is not None:
                    found.append(token)
                    position += length
                    break
            else:
                position += 1
        return found


def begin_token_table(tokenizer: Tokenizer) -> None:
    """Make the table in a thread: neither the opening of a model nor the first request that needs it should wait.

    No daemon: one that the interpreter ends inside of the library takes the process down.
    """
    name = "pocketllm-token-table"
    threading.Thread(target=_try_token_table, args=(tokenizer,), name=name, daemon=False).start()


def _try_token_table(tokenizer: Tokenizer) -> None:
    try:
        token_table(tokenizer)
    except PocketLLMError:
        logger.debug("no table of this vocabulary can be made; the first constraint says why", exc_info=True)


def token_table(tokenizer: Tokenizer, text_ids: Collection[int] = ()) -> TokenTable:
    """The table of ``tokenizer``, made once and kept as long as the tokenizer lives."""
    key = frozenset(text_ids)
    with _lock:
        tables = _tables.setdefault(tokenizer, OrderedDict())
        found = tables.get(key)
        if found is None:
            found = tables[key] = TokenTable(tokenizer, key)
            # The plain table, made for nearly every constraint, is never the one to go.
            extra = [other for other in tables if other and other != key]
            if len(tables) > _MAX_TABLES_PER_TOKENIZER and extra:
                del tables[extra[0]]
        return found
