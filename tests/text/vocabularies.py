"""Small tokenizers for the text tests: plain ones written here, and ones that the ``tokenizers`` library decodes."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models


class ByteVocabulary:
    """A vocabulary given as bytes; decoding is that of the byte kinds. Every id past it is unknown."""

    def __init__(self, pieces: Sequence[bytes], *, special: Sequence[int] = (), add_space_prefix: bool = False) -> None:
        self.pieces = list(pieces)
        self.special = frozenset(special)
        self.decoder_kind = "byte_fallback" if add_space_prefix else "byte_level"
        self.add_space_prefix = add_space_prefix
        self.num_decoded_ids = 0

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id] if token_id < len(self.pieces) else b""

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        self.num_decoded_ids += len(ids)
        shown = [token_id for token_id in ids if not (skip_special and token_id in self.special)]
        text = b"".join(self.token_bytes(token_id) for token_id in shown).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.add_space_prefix else text


class LibraryVocabulary:
    """A vocabulary of surfaces that the library itself decodes."""

    def __init__(
        self, surfaces: Sequence[str], decoder: decoders.Decoder, kind: str, *, add_space_prefix: bool = False
    ) -> None:
        self.surfaces = list(surfaces)
        self.engine = tokenizers.Tokenizer(models.WordLevel({surface: i for i, surface in enumerate(surfaces)}, "?"))
        self.engine.decoder = decoder
        self.decoder_kind = kind
        self.add_space_prefix = add_space_prefix
        self.num_decoded_ids = 0

    def token_bytes(self, token_id: int) -> bytes:
        surface = self.surfaces[token_id]
        if self.decoder_kind == "byte_level":
            return bytes(BYTE_OF[char] for char in surface)
        if len(surface) == 6 and surface.startswith("<0x"):
            return bytes([int(surface[3:5], 16)])
        return surface.replace("\u2581", " ").encode()

    def is_special(self, token_id: int) -> bool:
        return False

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        self.num_decoded_ids += len(ids)
        return str(self.engine.decode(list(ids), skip_special_tokens=skip_special))


def _byte_alphabet() -> dict[str, int]:
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + i): byte for i, byte in enumerate(moved)}


BYTE_OF = _byte_alphabet()
CHAR_OF = {byte: char for char, byte in BYTE_OF.items()}

SINGLE_BYTES = [bytes([value]) for value in range(256)]
"""Ids 0 to 255 are the bytes, so every byte string can be told as ids."""

MIXED_PIECES = [
    *SINGLE_BYTES,
    b"hello",
    b" world",
    "é".encode(),
    "😊".encode(),
    "😊".encode()[:2],
    "😊".encode()[2:],
    b"a" + "€".encode()[:1],
    "€".encode()[1:] + b"b",
    b"\xff\xfe",
    b"<|end|>",
    b"",
]
END_ID = len(MIXED_PIECES) - 2


def cut(values: Sequence[int], places: Sequence[int]) -> list[Sequence[int]]:
    """``values`` cut at the given places (taken modulo the length, in any order)."""
    ends = sorted({place % (len(values) + 1) for place in places})
    return [values[start:end] for start, end in zip([0, *ends], [*ends, len(values)], strict=True)]
