"""The tokenizer the text pipeline uses, over the ``tokenizers`` library, whatever file it was built from."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from pocketllm.errors import ConfigurationError

if TYPE_CHECKING:
    import tokenizers

SPACE_MARK = "\u2581"  # stands for a space in SentencePiece vocabularies

DecoderKind = Literal["byte_level", "byte_fallback", "other"]


class TokenizerParts(msgspec.Struct, frozen=True):
    """What a tokenizer source hands over; see :class:`Tokenizer` for the words.

    Attributes:
        engine: the library's tokenizer, which matches special tokens in text.
        decoder_kind: how token bytes become text.
        special_ids: control tokens, dropped from text.
        literal_ids: tokens whose surface is their text as it stands (added and control tokens).
        byte_ids: token id to byte, for ``<0xNN>`` tokens.
        hidden_surfaces: surfaces the library does not know, since two ids share them.
    """

    engine: tokenizers.Tokenizer
    decoder_kind: DecoderKind
    vocab_size: int
    special_ids: frozenset[int]
    literal_ids: frozenset[int]
    byte_ids: Mapping[int, int]
    bos_token_id: int | None
    eos_token_id: int | None
    add_bos: bool
    add_space_prefix: bool
    hidden_surfaces: Mapping[int, str] = {}


class Tokenizer:
    """Text to token ids and back. Immutable after construction; every method may be called from any thread.

    Attributes:
        vocab_size: one more than the highest token id with a surface. A model may have more logits than that.
        bos_token_id, eos_token_id: None when the checkpoint names none.
        bos_token, eos_token: their surfaces.
        add_bos: the checkpoint's rule for a plain prompt.
        add_space_prefix: SentencePiece's leading space: put before text on encoding, taken off on decoding.
        decoder_kind: ``"byte_level"`` and ``"byte_fallback"``: text is the UTF-8 of the tokens' bytes in a row;
            ``"other"``: only :meth:`decode` of the whole sequence is exact.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._engine = parts.engine
        self._plain = _without_special_tokens(parts.engine)
        self.special_ids = parts.special_ids
        self._literal_ids = parts.literal_ids
        self._byte_ids = parts.byte_ids
        self._hidden_surfaces = parts.hidden_surfaces
        self.decoder_kind: DecoderKind = parts.decoder_kind
        self.vocab_size = parts.vocab_size
        self._bytes_of: list[bytes | None] = [None] * parts.vocab_size
        self.bos_token_id = parts.bos_token_id
        self.eos_token_id = parts.eos_token_id
        self.add_bos = parts.add_bos and parts.bos_token_id is not None
        self.add_space_prefix = parts.add_space_prefix
        self.bos_token = None if self.bos_token_id is None else self.token_text(self.bos_token_id)
        self.eos_token = None if self.eos_token_id is None else self.token_text(self.eos_token_id)

    @functools.cached_property
    def max_token_chars(self) -> int:
        """Length of the longest surface: a text has at least its own length over this in tokens."""
        return max(map(len, self._engine.get_vocab(with_added_tokens=True)), default=1)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.decoder_kind}, {self.vocab_size} tokens>"

    def encode(self, text: str, *, add_bos: bool | None = None, parse_special: bool = True) -> list[int]:
        """The token ids of ``text``.

        Args:
            text: any text; the empty text has no tokens but a BOS.
            add_bos: put the BOS id first. None follows :attr:`add_bos`, except that a text which begins with the BOS
                token already gets no second one. Pass False for a rendered chat template, which prints its own.
            parse_special: True reads the surfaces of control tokens as those tokens, as rendered templates need.
                False spells them out as text, as content from a person needs. Tokens a vocabulary defines as ordinary
                text (SentencePiece's user-defined tokens, tags that are not special) are matched whole in both.

        Raises:
            ConfigurationError: the text holds a lone surrogate, or ``add_bos`` is True and there is no BOS token.
        """
        engine = self._engine if parse_special else self._plain
        try:
            # The batch call gives the GIL away while it works; the plain one keeps it, for seconds on a long text.
            ids = list(engine.encode_batch([text], add_special_tokens=False)[0].ids)
        except (TypeError, UnicodeEncodeError):
            # The library reports a lone surrogate as a wrong type.
            raise ConfigurationError(_describe_bad_text(text), param="prompt") from None
        bos = self.bos_token_id
        if add_bos and bos is None:
            raise ConfigurationError("add_bos is True, but this tokenizer has no BOS token.", param="add_bos")
        if bos is not None and (add_bos or (add_bos is None and self.add_bos and ids[:1] != [bos])):
            ids.insert(0, bos)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of a whole sequence. Bytes that are not UTF-8 become U+FFFD.

        Args:
            ids: token ids; an id at or above :attr:`vocab_size` has no text.
            skip_special: leave control tokens out.
        """
        if self.decoder_kind == "other":
            known = [token_id for token_id in ids if 0 <= token_id < self.vocab_size]
            return str(self._engine.decode(known, skip_special_tokens=skip_special))
        special = self.special_ids if skip_special else frozenset[int]()
        raw = b"".join(self.token_bytes(token_id) for token_id in ids if token_id not in special)
        text = raw.decode("utf-8", errors="replace")
        return text[1:] if self.add_space_prefix and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes one token adds to the text; its literal surface for a control token.

        For decoder kind ``"other"`` this is the token decoded on its own. An id at or above :attr:`vocab_size`, which
        a model with padded logits can emit, adds nothing.

        Raises:
            ConfigurationError: the id is negative.
        """
        if not 0 <= token_id < self.vocab_size:
            return self._make_bytes(token_id)  # which refuses it, or has nothing for it
        found = self._bytes_of[token_id]
        if found is None:
            found = self._bytes_of[token_id] = self._make_bytes(token_id)
        return found

    def all_token_bytes(self) -> list[bytes]:
        """:meth:`token_bytes` of every id, in a fraction of the time that asking for each takes; not kept."""
        surfaces = [""] * self.vocab_size
        for surface, token_id in self._engine.get_vocab(with_added_tokens=True).items():
            if token_id < self.vocab_size:
                surfaces[token_id] = surface
        if self.decoder_kind == "byte_level":
            pieces = _undo_byte_alphabet_of_all(surfaces)
        elif self.decoder_kind == "byte_fallback":
            pieces = [surface.replace(SPACE_MARK, " ").encode("utf-8") for surface in surfaces]
        else:
            return [self.token_bytes(token_id) for token_id in range(self.vocab_size)]
        # Those whose surface is not the whole truth, and ids without one, which share it with another or have none.
        single = {*self._literal_ids, *self._byte_ids, *(index for index, piece in enumerate(pieces) if not piece)}
        for token_id in single:
            if token_id < self.vocab_size:
                pieces[token_id] = self._make_bytes(token_id)
        return pieces

    def _make_bytes(self, token_id: int) -> bytes:
        byte = self._byte_ids.get(token_id)
        if byte is not None:
            return bytes((byte,))
        surface = self.token_text(token_id)
        if token_id in self._literal_ids and not (self.decoder_kind == "byte_fallback" and self._is_ordinary(token_id)):
            return surface.encode("utf-8")
        if self.decoder_kind == "byte_level":
            return undo_byte_alphabet(surface)
        if self.decoder_kind == "byte_fallback":
            return surface.replace(SPACE_MARK, " ").encode("utf-8")
        return str(self._engine.decode([token_id], skip_special_tokens=False)).encode("utf-8") if surface else b""

    def _is_ordinary(self, token_id: int) -> bool:
        return token_id not in self.special_ids

    def token_text(self, token_id: int) -> str:
        """The vocabulary's surface of a token, alphabet and space marks as stored; empty for an unknown id.

        Raises:
            ConfigurationError: the id is negative.
        """
        if token_id < 0:
            raise ConfigurationError(f"token id {token_id} is negative; ids run from 0 to {self.vocab_size - 1}.")
        if token_id >= self.vocab_size:
            return ""
        surface = self._engine.id_to_token(token_id)
        return surface if surface is not None else self._hidden_surfaces.get(token_id, "")

    def is_special(self, token_id: int) -> bool:
        """Whether a token is a control token, which text leaves out."""
        return token_id in self.special_ids

    def token_id(self, text: str) -> int | None:
        """The id of the token with this surface, or None."""
        found = self._engine.token_to_id(text)
        return None if found is None else int(found)


def _byte_alphabet() -> dict[str, int]:
    """Character to byte in GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if chr(byte) not in alphabet)
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(list(others))})
    return alphabet


_BETWEEN = "\uffff"
_OUTSIDE = "\ufffe"  # no vocabulary has this noncharacter, and Latin-1 does not either
# Each character as the Latin-1 character of its byte; Latin-1 characters that stand for none are marked.
_AS_LATIN_1 = dict.fromkeys(range(256), _OUTSIDE) | {ord(char): chr(byte) for char, byte in _byte_alphabet().items()}


def undo_byte_alphabet(surface: str) -> bytes:
    """The bytes a byte-level surface stands for; its UTF-8 when a character is outside the alphabet."""
    try:
        return surface.translate(_AS_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return surface.encode("utf-8")


def _undo_byte_alphabet_of_all(surfaces: list[str]) -> list[bytes]:
    """:func:`undo_byte_alphabet` of each, translated together."""
    translated = _BETWEEN.join(surfaces).translate(_AS_LATIN_1).split(_BETWEEN)
    if len(translated) != len(surfaces):  # a surface holds the separator
        return [undo_byte_alphabet(surface) for surface in surfaces]
    pieces: list[bytes] = []
    for index, text in enumerate(translated):
        try:
            pieces.append(text.encode("latin-1"))
        except UnicodeEncodeError:
            pieces.append(surfaces[index].encode("utf-8"))
    return pieces


def _without_special_tokens(engine: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A twin that spells special tokens out. It shares the vocabulary, which is nearly all of the memory.

    The library numbers added tokens in the order they are added, so adding them by id gives each its id again.
    """
    from tokenizers import Tokenizer as Engine

    twin = Engine(engine.model)
    if engine.normalizer is not None:
        twin.normalizer = engine.normalizer
    if engine.pre_tokenizer is not None:
        twin.pre_tokenizer = engine.pre_tokenizer
    added = engine.get_added_tokens_decoder()
    twin.add_tokens([added[token_id] for token_id in sorted(added)])
    twin.encode_special_tokens = True
    return twin


def _describe_bad_text(text: object) -> str:
    if not isinstance(text, str):
        return f"a prompt must be text, not {type(text).__name__}."
    position = next((index for index, char in enumerate(text) if 0xD800 <= ord(char) < 0xE000), None)
    return f"the text is not valid Unicode: character {position} is a lone surrogate. Remove it or decode it properly."
