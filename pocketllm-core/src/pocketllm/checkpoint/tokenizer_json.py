"""A tokenizer from a Hugging Face folder: ``tokenizer.json`` with what ``tokenizer_config.json`` says about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pocketllm.checkpoint.bounded_file import read_json_file, read_text_file
from pocketllm.checkpoint.library_errors import as_checkpoint_error
from pocketllm.checkpoint.tokenizer import DecoderKind, Tokenizer, TokenizerParts
from pocketllm.errors import CheckpointError

if TYPE_CHECKING:
    import tokenizers

FILE_NAME = "tokenizer.json"
CONFIG_NAME = "tokenizer_config.json"
_MAX_FILE_BYTES = 256 << 20


def read_tokenizer_config(folder: Path) -> dict[str, object]:
    """``tokenizer_config.json`` of a folder, with ``special_tokens_map.json`` filling gaps; empty when absent."""
    config: dict[str, object] = {}
    for name in ("special_tokens_map.json", CONFIG_NAME):
        if (folder / name).is_file():
            config.update(read_json_file(folder / name))
    return config


def build_tokenizer(file: Path, model_config: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer of ``file``.

    Args:
        file: a ``tokenizer.json``; the files beside it name the BOS and EOS tokens.
        model_config: the model's ``config.json``, asked for the BOS and EOS ids where those files are silent.

    Raises:
        CheckpointError: the file is missing, malformed or of a kind the ``tokenizers`` library does not know.
    """
    from tokenizers import Tokenizer as Engine

    text = read_text_file(file, max_bytes=_MAX_FILE_BYTES)
    with as_checkpoint_error(f"{file}: not a tokenizer the tokenizers library can read"):
        engine = Engine.from_str(text)
    # Saved by a training run, these would silently cut or pad prompts.
    engine.no_truncation()
    engine.no_padding()
    config = read_tokenizer_config(file.parent)
    bos = _named_token(engine, config, model_config, "bos", file)
    eos = _named_token(engine, config, model_config, "eos", file)
    added = engine.get_added_tokens_decoder()
    kind, add_space_prefix = _decoding(engine)
    vocab_size = max([engine.get_vocab_size(with_added_tokens=True), *(token_id + 1 for token_id in added)])
    parts = TokenizerParts(
        engine=engine,
        decoder_kind=kind,
        vocab_size=vocab_size,
        special_ids=frozenset(token_id for token_id, token in added.items() if token.special),
        literal_ids=frozenset(added),
        byte_ids=_byte_ids(engine) if kind == "byte_fallback" else {},
        bos_token_id=bos,
        eos_token_id=eos,
        add_bos=_adds_bos(engine, config, bos),
        add_space_prefix=add_space_prefix,
    )
    return Tokenizer(parts)


def _named_token(
    engine: tokenizers.Tokenizer,
    config: Mapping[str, object],
    model_config: Mapping[str, object],
    name: str,
    file: Path,
) -> int | None:
    token = config.get(f"{name}_token")
    if isinstance(token, dict):
        token = token.get("content")
    if isinstance(token, str):
        found = engine.token_to_id(token)
        if found is None:
            raise CheckpointError(f"{file.parent / CONFIG_NAME}: {name}_token {token!r} is not in {file.name}.")
        return int(found)
    value = model_config.get(f"{name}_token_id")
    if isinstance(value, list) and value:
        value = value[0]
    return value if type(value) is int and engine.id_to_token(value) is not None else None


def _adds_bos(engine: tokenizers.Tokenizer, config: Mapping[str, object], bos: int | None) -> bool:
    """An explicit ``add_bos_token``, else what the file's own post-processor does to the empty text."""
    explicit = config.get("add_bos_token")
    if isinstance(explicit, bool):
        return explicit
    return bos is not None and engine.encode("", add_special_tokens=True).ids[:1] == [bos]


def _decoding(engine: tokenizers.Tokenizer) -> tuple[DecoderKind, bool]:
    """How token bytes become text, and whether decoding takes a leading space off."""
    if engine.decoder is None:
        return "other", False
    steps = list(_decoder_steps(json.loads(engine.decoder.__getstate__())))
    kinds = {step.get("type") for step in steps}
    strips = any(
        (step.get("type") == "Strip" and step.get("content") == " " and step.get("start"))
        or (step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in steps
    )
    if "ByteFallback" in kinds:
        return "byte_fallback", strips
    return ("byte_level" if "ByteLevel" in kinds else "other"), strips


def _decoder_steps(decoder: dict[str, object]) -> Iterator[dict[str, object]]:
    inner = decoder.get("decoders")
    if isinstance(inner, list):
        for step in inner:
            yield from _decoder_steps(step)
    else:
        yield decoder


def _byte_ids(engine: tokenizers.Tokenizer) -> dict[int, int]:
    found = ((engine.token_to_id(f"<0x{byte:02X}>"), byte) for byte in range(256))
    return {token_id: byte for token_id, byte in found if token_id is not None}
