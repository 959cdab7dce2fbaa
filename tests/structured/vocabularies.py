"""Tiny vocabularies in the shapes that checkpoints have."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from pocketllm.checkpoint import Tokenizer
from pocketllm.checkpoint.tokenizer import SPACE_MARK, TokenizerParts
from tests.text.vocabularies import CHAR_OF

WORDS = (
    '{"',
    '":',
    '", "',
    '"}',
    "true",
    "null",
    "  ",
    "\n\n",
    "12",
    "hello",
    " world",
    "é",
    "日本",
    "ag",
    "</",
    "</th",
)
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CONTROLS = ("<|end|>", "<|other|>", "｜DSML｜")


def byte_level() -> Tokenizer:
    """Every byte, some longer pieces, tags that are text, and three control tokens (the first ends a text)."""
    surfaces = [CHAR_OF[byte] for byte in range(256)]
    surfaces += ["".join(CHAR_OF[byte] for byte in word.encode()) for word in WORDS]
    engine = tokenizers.Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(surfaces)}, merges=[]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    engine.add_special_tokens([AddedToken(surface, special=True, normalized=False) for surface in CONTROLS])
    first_control = len(surfaces) + len(TAGS)
    controls = range(first_control, first_control + len(CONTROLS))
    return Tokenizer(
        TokenizerParts(
            engine=engine,
            decoder_kind="byte_level",
            vocab_size=controls.stop,
            special_ids=frozenset(controls),
            literal_ids=frozenset(range(len(surfaces), controls.stop)),
            byte_ids={},
            bos_token_id=None,
            eos_token_id=first_control,
            add_bos=False,
            add_space_prefix=False,
        )
    )


def sentence_piece() -> Tokenizer:
    """Byte tokens, ASCII and some words with their leading space, as SentencePiece vocabularies have them."""
    surfaces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    surfaces += [SPACE_MARK, *map(chr, range(0x21, 0x7F)), SPACE_MARK + "hello", SPACE_MARK + "{", "\n", '{"', '":']
    vocabulary = {text: i for i, text in enumerate(surfaces)}
    engine = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    engine.pre_tokenizer = pre_tokenizers.Metaspace(SPACE_MARK, prepend_scheme="first", split=False)
    return Tokenizer(
        TokenizerParts(
            engine=engine,
            decoder_kind="byte_fallback",
            vocab_size=len(surfaces),
            special_ids=frozenset({0, 1, 2}),
            literal_ids=frozenset({0, 1, 2}),
            byte_ids={3 + byte: byte for byte in range(256)},
            bos_token_id=1,
            eos_token_id=2,
            add_bos=True,
            add_space_prefix=True,
        )
    )
