"""Any cut of the ids gives the text of decoding them at once, in linear time, and no piece is taken back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from pocketllm.checkpoint import open_checkpoint
from pocketllm.text.detokenizer import CumulativeDetokenizer, Detokenizer, TextTokenizer
from tests.text.vocabularies import (
    CHAR_OF,
    END_ID,
    MIXED_PIECES,
    SINGLE_BYTES,
    ByteVocabulary,
    LibraryVocabulary,
    cut,
)

MIXED = ByteVocabulary(MIXED_PIECES, special=[END_ID])
SPACED = ByteVocabulary([b" ", b" a", b"  b", *SINGLE_BYTES, "é".encode()], add_space_prefix=True)
# Borders of the UTF-8 rules: ASCII, continuation, overlong, leads of two to four bytes, surrogates, past U+10FFFF.
EDGES = list(bytes.fromhex("20 61 7f 80 82 8f 90 9f a0 bf c0 c2 e0 e2 ed f0 f4 f5 ff"))
BYTES = st.lists(st.sampled_from(EDGES), max_size=20).map(bytes) | st.binary(max_size=60)
PLACES = st.lists(st.integers(0, 1000), max_size=8)


def decode_in_pieces(tokenizer: TextTokenizer, pieces: list[list[int]], *, skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
    return [*(detokenizer.feed(piece) for piece in pieces), detokenizer.finish()]


@given(ids=st.lists(st.integers(0, len(MIXED_PIECES) + 2), max_size=40), places=PLACES, skip_special=st.booleans())
def test_any_cut_gives_the_whole(ids: list[int], places: list[int], skip_special: bool) -> None:
    pieces = [list(piece) for piece in cut(ids, places)]
    expected = MIXED.decode(ids, skip_special=skip_special)
    assert "".join(decode_in_pieces(MIXED, pieces, skip_special=skip_special)) == expected


@given(ids=st.lists(st.integers(0, len(SPACED.pieces) - 1), max_size=12), places=PLACES)
def test_one_leading_space_is_taken_off(ids: list[int], places: list[int]) -> None:
    assert "".join(decode_in_pieces(SPACED, [list(piece) for piece in cut(ids, places)])) == SPACED.decode(ids)


@given(data=BYTES, places=PLACES)
@example(data=b"\xed\xa0x", places=[1, 2])
def test_byte_level_agrees_with_the_library(data: bytes, places: list[int]) -> None:
    library = LibraryVocabulary([CHAR_OF[byte] for byte in range(256)], decoders.ByteLevel(), "byte_level")
    assert ByteVocabulary(SINGLE_BYTES).decode(data) == library.decode(data)
    assert "".join(decode_in_pieces(library, [list(piece) for piece in cut(data, places)])) == library.decode(data)


@given(text=st.text(max_size=30), flags=st.lists(st.booleans(), min_size=30, max_size=30), places=PLACES)
def test_byte_fallback_agrees_with_the_library_on_valid_text(text: str, flags: list[bool], places: list[int]) -> None:
    text = text.replace("\u2581", "_").replace("<", "(")
    surfaces = [f"<0x{byte:02X}>" for byte in range(256)]
    surfaces += sorted({char.replace(" ", "\u2581") for char in text})
    decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    library = LibraryVocabulary(surfaces, decoder, "byte_fallback")
    ids: list[int] = []
    for char, as_bytes in zip(text, flags, strict=False):
        ids.extend(char.encode() if as_bytes else [surfaces.index(char.replace(" ", "\u2581"))])
    assert library.decode(ids) == text
    assert "".join(decode_in_pieces(library, [list(piece) for piece in cut(ids, places)])) == text


@given(ids=st.lists(st.integers(0, len(MIXED_PIECES) - 1), max_size=40), places=PLACES)
def test_the_reference_never_runs_ahead_of_the_detokenizer(ids: list[int], places: list[int]) -> None:
    fast, slow = Detokenizer(MIXED), CumulativeDetokenizer(MIXED)
    fast_text = slow_text = ""
    for piece in cut(ids, places):
        fast_text += fast.feed(piece)
        slow_text += slow.feed(piece)
        assert fast_text.startswith(slow_text)
    assert fast_text + fast.finish() == slow_text + slow.finish()


@pytest.mark.parametrize("char", ["é", "€", "😊"])
def test_a_character_comes_with_its_last_byte(char: str) -> None:
    detokenizer = Detokenizer(MIXED)
    *first, last = char.encode()
    assert detokenizer.feed(first) == ""
    assert detokenizer.feed_one(last) == char
    assert detokenizer.finish() == ""


def test_invalid_bytes_are_shown_as_soon_as_they_are_certain() -> None:
    detokenizer = Detokenizer(MIXED)
    assert detokenizer.feed([0xF0, 0x9F]) == ""
    assert detokenizer.feed(b"x") == "\ufffdx"
    assert detokenizer.feed([0xFF]) == "\ufffd"
    assert detokenizer.feed([0xE2, 0x82]) == ""
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_special_tokens_split_no_character_and_can_be_kept() -> None:
    first, second = MIXED_PIECES.index("😊".encode()[:2]), MIXED_PIECES.index("😊".encode()[2:])
    assert Detokenizer(MIXED).feed([first, END_ID, second]) == "😊"
    assert Detokenizer(MIXED, kept_ids=[END_ID]).feed([97, END_ID, 98]) == "a<|end|>b"


def test_a_token_starts_where_its_first_character_does() -> None:
    detokenizer = Detokenizer(MIXED)
    starts = []
    euro_start, euro_end = MIXED_PIECES.index(b"a\xe2"), MIXED_PIECES.index(b"\x82\xacb")
    for token_id in [euro_start, euro_end, END_ID, 0xE2, 99, 100]:
        detokenizer.feed_one(token_id)
        starts.append(detokenizer.last_token_start)
    # a, then €b begins at the €, no text, the cut character, c after its U+FFFD, d
    assert starts == [0, 1, 3, 3, 4, 5]


def wordpiece() -> LibraryVocabulary:
    return LibraryVocabulary(["play", "##ing", "the", ".", "n't", "do"], decoders.WordPiece(), "other")


def metaspace() -> LibraryVocabulary:
    return LibraryVocabulary(["\u2581the", "\u2581", "cat", "\u2581\u2581", "s"], decoders.Metaspace(), "other")


@given(ids=st.lists(st.integers(0, 4), max_size=30), places=PLACES)
def test_other_decoders_look_back(ids: list[int], places: list[int]) -> None:
    for library in (wordpiece(), metaspace()):
        assert "".join(decode_in_pieces(library, [list(piece) for piece in cut(ids, places)])) == library.decode(ids)


def test_other_decoders_hold_a_cut_character() -> None:
    surfaces = [f"<0x{byte:02X}>" for byte in range(256)]
    library = LibraryVocabulary(surfaces, decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]), "other")
    *first, last = "😊".encode()
    detokenizer = Detokenizer(library)
    assert detokenizer.feed(first) == ""
    assert detokenizer.feed_one(last) == "😊"


@settings(max_examples=5)
@given(token_id=st.sampled_from([0, 3, 4]))
def test_other_decoders_decode_each_id_a_bounded_number_of_times(token_id: int) -> None:
    library = metaspace()
    detokenizer = Detokenizer(library)
    for _ in range(2000):
        detokenizer.feed_one(token_id)
    detokenizer.finish()
    assert library.num_decoded_ids < 2000 * 20


def test_byte_kinds_never_decode() -> None:
    tokenizer = ByteVocabulary(MIXED_PIECES)
    detokenizer = Detokenizer(tokenizer)
    detokenizer.feed([256, 257] * 100)
    detokenizer.finish()
    assert tokenizer.num_decoded_ids == 0


def test_a_real_tokenizers_ids_give_its_own_text(smollm2_path: Path) -> None:
    tokenizer = open_checkpoint(smollm2_path).tokenizer()
    rng = random.Random(5)
    text = "Ünïcödé 你好 😊 naïve — 한국어 'quoted' \n\n\t def f(x): return x**2 🏳️\u200d🌈 "
    for _ in range(50):
        ids = tokenizer.encode(text) + [rng.randrange(tokenizer.vocab_size + 10) for _ in range(30)]
        rng.shuffle(ids)
        detokenizer = Detokenizer(tokenizer)
        shown = "".join(detokenizer.feed_one(token_id) for token_id in ids) + detokenizer.finish()
        assert shown == tokenizer.decode(ids)
    assert "".join(decode_in_pieces(tokenizer, [[token_id] for token_id in tokenizer.encode(text)])) == text
