"""Small checkpoint files written byte by byte, so that a test can also write them wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


class Typed(NamedTuple):
    """A GGUF value with its type spelled out; an array is ``Typed(ARRAY, (item_type, items))``."""

    kind: int
    value: object


class Tensor(NamedTuple):
    """A GGUF tensor; ``shape`` is outermost first, ``offset`` None puts it behind the one before."""

    name: str
    shape: tuple[int, ...]
    kind: int = 0
    num_bytes: int = 0
    offset: int | None = None


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def typed(value: object) -> Typed:
    """The usual GGUF type of a Python value."""
    if isinstance(value, Typed):
        return value
    if isinstance(value, bool):
        return Typed(BOOL, value)
    if isinstance(value, int):
        return Typed(U32, value)
    if isinstance(value, float):
        return Typed(F32, value)
    if isinstance(value, str):
        return Typed(STRING, value)
    assert isinstance(value, list | tuple), value
    kind = {str: STRING, int: I32, float: F32, bool: BOOL}[type(value[0])]
    return Typed(ARRAY, (kind, list(value)))


def payload(value: Typed) -> bytes:
    if value.kind == STRING:
        assert isinstance(value.value, str)
        return text(value.value)
    if value.kind == ARRAY:
        assert isinstance(value.value, tuple)
        kind, items = value.value
        return struct.pack("<IQ", kind, len(items)) + b"".join(payload(Typed(kind, item)) for item in items)
    return struct.pack("<" + _LETTERS[value.kind], value.value)


def gguf_bytes(
    metadata: Mapping[str, object] | Sequence[tuple[str, object]],
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    num_tensors: int | None = None,
    num_keys: int | None = None,
    data_bytes: int | None = None,
) -> bytes:
    """A GGUF file with zeros for tensor data: as many as the tensors reach, or ``data_bytes``."""
    pairs = list(metadata.items()) if isinstance(metadata, Mapping) else list(metadata)
    out = bytearray(b"GGUF" + struct.pack("<I", version))
    out += struct.pack(
        "<QQ", len(tensors) if num_tensors is None else num_tensors, len(pairs) if num_keys is None else num_keys
    )
    for key, value in pairs:
        as_typed = typed(value)
        out += text(key) + struct.pack("<I", as_typed.kind) + payload(as_typed)
    end = 0
    for tensor in tensors:
        offset = -(-end // alignment) * alignment if tensor.offset is None else tensor.offset
        end = max(end, offset + tensor.num_bytes)
        out += text(tensor.name) + struct.pack("<I", len(tensor.shape))
        out += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        out += struct.pack("<IQ", tensor.kind, offset)
    out += b"\0" * (-len(out) % alignment)
    return bytes(out) + bytes(end if data_bytes is None else data_bytes)


LLAMA_KEYS: dict[str, object] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
}
LLAMA_TENSORS = (
    Tensor("token_embd.weight", (8, 64), 8, 8 * 2 * 34),
    Tensor("blk.0.attn_q.weight", (64, 64), 3, 64 * 2 * 20),
    Tensor("blk.0.attn_norm.weight", (64,), 0, 256),
)
BYTE_LEVEL_KEYS: dict[str, object] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "c", "Ġ", "ab", "Ġa", "<eos>", "<tag>"],
    "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 1, 3, 4],
    "tokenizer.ggml.merges": ["a b", "Ġ a"],
    "tokenizer.ggml.eos_token_id": 6,
    "tokenizer.chat_template": "{{ messages }}",
}
SENTENCEPIECE_KEYS: dict[str, object] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": "default",
    "tokenizer.ggml.tokens": [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "b",
        "▁a",
        "ab",
    ],
    "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1],
    "tokenizer.ggml.scores": [0.0, 0.0, 0.0, *[0.0] * 256, -1.0, -2.0, -3.0, -4.0, -5.0],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def safetensors_bytes(header: Mapping[str, object] | str | bytes, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(dtype: str, shape: Sequence[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def write_json(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path
