"""GGUF headers: what honest ones say, and that each way to be wrong is one error about that very thing."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pocketllm.checkpoint.gguf import GgufHeader, read_header, read_tensors
from pocketllm.checkpoint.gguf_types import TENSOR_TYPES
from pocketllm.errors import CheckpointError
from tests.checkpoint.sample_files import (
    ARRAY,
    I32,
    LLAMA_KEYS,
    LLAMA_TENSORS,
    STRING,
    Tensor,
    Typed,
    gguf_bytes,
    text,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def written(file: Path, data: bytes) -> GgufHeader:
    file.write_bytes(data)
    return read_header(file)


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type_is_read(file: Path, version: int) -> None:
    values = {
        "u8": (Typed(0, 255), 255),
        "i8": (Typed(1, -3), -3),
        "u16": (Typed(2, 65535), 65535),
        "i16": (Typed(3, -3), -3),
        "u32": (Typed(4, 1 << 31), 1 << 31),
        "i32": (Typed(5, -3), -3),
        "f32": (Typed(6, 0.5), 0.5),
        "bool": (Typed(7, True), True),
        "string": (Typed(8, "Grüße"), "Grüße"),
        "long string": (Typed(8, "ü" * 5000), "ü" * 5000),
        "u64": (Typed(10, (1 << 64) - 1), (1 << 64) - 1),
        "i64": (Typed(11, -(1 << 63)), -(1 << 63)),
        "f64": (Typed(12, 1e300), 1e300),
        "strings": (Typed(ARRAY, (STRING, ["a", "", "ö"])), ("a", "", "ö")),
        "flags": (Typed(ARRAY, (7, [True, False])), (True, False)),
        "empty": (Typed(ARRAY, (I32, [])), ()),
        "nested": (Typed(ARRAY, (ARRAY, [(I32, [1, 2]), (STRING, ["x"])])), ((1, 2), ("x",))),
    }
    header = written(file, gguf_bytes({key: value for key, (value, _) in values.items()}, version=version))
    assert header.version == version
    assert dict(header.metadata) == {key: expected for key, (_, expected) in values.items()}
    assert list(header.metadata) == list(values)
    assert header.metadata.array_length("strings") == 3
    assert header.metadata.array_length("u8") is None
    assert "absent" not in header.metadata
    assert header.metadata.get("absent") is None


def test_tensors_have_outermost_first_shapes_and_absolute_offsets(file: Path) -> None:
    header = written(file, gguf_bytes(LLAMA_KEYS, LLAMA_TENSORS))
    tensors = read_tensors(header)
    assert list(tensors) == [tensor.name for tensor in LLAMA_TENSORS]
    query = tensors["blk.0.attn_q.weight"]
    assert (query.dtype, query.shape, query.num_bytes, query.num_elements) == ("Q4_1", (64, 64), 2560, 4096)
    assert query.file == file
    data_start = file.stat().st_size - (544 + 2560 + 256)
    assert [info.offset - data_start for info in tensors.values()] == [0, 544, 544 + 2560]


def test_alignment_moves_the_data(file: Path) -> None:
    tensors = [Tensor("a", (3,), 0, 12), Tensor("b", (1,), 0, 4)]
    header = written(file, gguf_bytes({"general.alignment": 256}, tensors, alignment=256))
    found = read_tensors(header)
    assert found["a"].offset % 256 == 0
    assert found["b"].offset == found["a"].offset + 256


@pytest.mark.parametrize("kind", sorted(TENSOR_TYPES))
def test_every_storage_type_has_its_block_size(file: Path, kind: int) -> None:
    layout = TENSOR_TYPES[kind]
    width = layout.block_elements * 2
    header = written(file, gguf_bytes({}, [Tensor("w", (3, width), kind, 3 * 2 * layout.block_bytes)]))
    assert read_tensors(header)["w"].num_bytes == 6 * layout.block_bytes


def test_block_sizes_agree_with_the_format_s_own_package() -> None:
    import gguf

    for number, layout in TENSOR_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name == layout.name
        assert gguf.GGML_QUANT_SIZES[kind] == (layout.block_elements, layout.block_bytes)


def good() -> bytes:
    return gguf_bytes({"general.architecture": "llama"})


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "the magic number needs 4 bytes"),
        (b"GGU", "the magic number needs 4 bytes"),
        (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
        (gguf_bytes({}, version=1), "GGUF version 1 where"),
        (gguf_bytes({}, version=4), "GGUF version 4 where"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (gguf_bytes({}, num_keys=1 << 60), "metadata entries"),
        (gguf_bytes({}, num_keys=(1 << 64) - 1), "metadata entries"),
        (gguf_bytes({}, num_tensors=1 << 60), "tensors"),
        (gguf_bytes({"a": "b" * 100}, num_keys=9), "metadata"),
        (gguf_bytes([("twice", 1), ("twice", 2)]), "'twice' appears twice"),
        (good()[:40], "general.archit|metadata"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_damaged_front_is_one_clear_error(file: Path, data: bytes, problem: str) -> None:
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=problem) as caught:
        read_header(file)
    assert str(file) in caught.value.message


def raw_value(kind: int, payload: bytes) -> bytes:
    """A file with the one key ``k``; nothing follows the payload."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", kind) + payload


def nested(depth: int) -> bytes:
    return struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", 0, 0)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (raw_value(13, bytes(8)), "the value of 'k' has the unknown type 13"),
        (raw_value(7, b"\x02"), "a boolean with the byte 2"),
        (raw_value(8, struct.pack("<Q", 1 << 60)), "claims 1152921504606846976 bytes"),
        (raw_value(8, struct.pack("<Q", 10) + b"short"), "needs 10 bytes and 5 are left"),
        (raw_value(8, text(b"\xff")), "not UTF-8"),
        (raw_value(9, struct.pack("<IQ", 99, 0)), "array of the unknown type 99"),
        (raw_value(9, struct.pack("<IQ", 0, 1 << 60)), "array of 1152921504606846976 items"),
        (raw_value(9, struct.pack("<IQ", 10, (1 << 61) + 1)), "needs"),
        (raw_value(9, struct.pack("<IQ", 8, 3) + text("a") + text("b") + bytes(7)), "cut off|needs"),
        (raw_value(9, struct.pack("<IQ", 8, 2) + struct.pack("<Q", 1 << 62) + bytes(8)), "past the end"),
        (raw_value(9, nested(40)), "nested more than 3 deep"),
        (raw_value(9, struct.pack("<IQ", 0, 9_000_000) + bytes(9_000_000)), "above the 8388608 allowed"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_damaged_value_is_one_clear_error(file: Path, data: bytes, problem: str) -> None:
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=problem):
        read_header(file)


@pytest.mark.parametrize("alignment", [0, 3, 48, 1 << 20, "32", -1.0])
def test_an_alignment_that_is_none_is_refused(file: Path, alignment: object) -> None:
    file.write_bytes(gguf_bytes({"general.alignment": alignment}))
    with pytest.raises(CheckpointError, match=r"general\.alignment"):
        read_header(file)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ([Tensor("a", (1,)), Tensor("a", (1,))], "'a' appears twice"),
        ([Tensor("a", (1, 1, 1, 1, 1), 0, 4)], "claims 5 dimensions"),
        ([Tensor("a", (1 << 40, 1 << 40), 0, 4)], "impossible shape"),
        ([Tensor("a", ((1 << 64) - 1,), 0, 4)], "impossible shape"),
        ([Tensor("a", (1 << 50,), 0, 4)], "of a file of"),
        ([Tensor("a", (4,), 4, 16)], "storage type 4"),
        ([Tensor("a", (4,), 99, 16)], "storage type 99"),
        ([Tensor("a", (2, 33), 2, 36)], "rows of 33 elements"),
        ([Tensor("a", (4,), 0, 16, offset=8)], "not aligned to 32"),
        ([Tensor("a", (16,), 0, 64), Tensor("b", (4,), 0, 16, offset=32)], "'a' .* and 'b' .* overlap"),
        ([Tensor("a", (4,), 0, 16), Tensor("b", (4,), 0, 16, offset=0)], "overlap"),
        ([Tensor("a", (4,), 0, 0, offset=(1 << 63))], "of a file of"),
        ([Tensor("x" * 2000, (4,), 0, 16)], "name of tensor 0 claims 2000 bytes"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_a_damaged_tensor_list_is_one_clear_error(file: Path, tensors: list[Tensor], problem: str) -> None:
    header = written(file, gguf_bytes({}, tensors, data_bytes=4096))
    with pytest.raises(CheckpointError, match=problem) as caught:
        read_tensors(header)
    assert str(file) in caught.value.message


def test_truncation_anywhere_is_an_error_and_never_anything_else(file: Path) -> None:
    whole = gguf_bytes({**LLAMA_KEYS, "words": ["a", "b"]}, LLAMA_TENSORS)
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            read_tensors(read_header(file))


def test_a_file_replaced_after_opening_is_noticed(file: Path) -> None:
    header = written(file, gguf_bytes({"words": ["a"]}, LLAMA_TENSORS))
    file.write_bytes(file.read_bytes() + b"more")
    with pytest.raises(CheckpointError, match="when it was opened"):
        header.metadata["words"]
    with pytest.raises(CheckpointError, match="when it was opened"):
        read_tensors(header)
