"""Safetensors headers and shard indexes."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from pocketllm.checkpoint.safetensors import INDEX_NAME, read_header, read_index, read_shards
from pocketllm.errors import CheckpointError
from tests.checkpoint.sample_files import entry, safetensors_bytes, write_json


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_an_honest_header_is_read_with_every_type(file: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry("BF16", (2, 3), 16, 28),
        "a": entry("F32", (4,), 0, 16),
        "packed": entry("F4", (2, 2), 28, 30),
        "none": entry("I64", (0, 5), 30, 30),
        "scalar": entry("F8_E8M0", (), 30, 31),
    }
    file.write_bytes(safetensors_bytes(header, bytes(31)))
    tensors, metadata = read_header(file)
    assert metadata == {"format": "pt"}
    start = file.stat().st_size - 31
    assert (tensors["b"].dtype, tensors["b"].shape, tensors["b"].offset, tensors["b"].num_bytes) == (
        "BF16",
        (2, 3),
        start + 16,
        12,
    )
    assert tensors["scalar"].num_elements == 1
    assert tensors["none"].num_elements == 0


def test_what_the_library_writes_is_read_alike(tmp_path: Path) -> None:
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    file = tmp_path / "x.safetensors"
    save_file(
        {"a.b": torch.zeros(3, 5, dtype=torch.bfloat16), "c": torch.zeros(2), "d": torch.zeros(4, dtype=torch.int64)},
        file,
        metadata={"format": "pt"},
    )
    tensors, metadata = read_header(file)
    with safe_open(file, framework="pt") as opened:
        assert metadata == opened.metadata()
        assert set(tensors) == set(opened.keys())
        for name, info in tensors.items():
            assert list(info.shape) == opened.get_slice(name).get_shape()
            assert info.dtype == opened.get_slice(name).get_dtype()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "the header length"),
        (struct.pack("<Q", 1 << 60), "claims 1152921504606846976 bytes"),
        (struct.pack("<Q", 100) + b"{}", "needs 100 bytes and 2 are left"),
        (safetensors_bytes(b"\xff"), "not UTF-8"),
        (safetensors_bytes("[]"), "where an object belongs"),
        (safetensors_bytes("{" * 9), "not valid JSON"),
        (safetensors_bytes("[" * 100_000), "nested too deeply"),
        (safetensors_bytes({"__metadata__": {"a": 1}}), "__metadata__: must be"),
        (safetensors_bytes({"a": 5}), "exactly dtype, shape and data_offsets"),
        (safetensors_bytes({"a": {**entry("F32", (1,), 0, 4), "more": 1}}, bytes(4)), "exactly dtype"),
        (safetensors_bytes({"a": entry("F31", (1,), 0, 4)}, bytes(4)), "unknown dtype 'F31'"),
        (safetensors_bytes('{"a":{"dtype":[1],"shape":[],"data_offsets":[0,4]}}', bytes(4)), "unknown dtype"),
        (safetensors_bytes({"a": entry("F32", (-1,), 0, 4)}, bytes(4)), "shape"),
        (safetensors_bytes({"a": entry("F32", (1.0,), 0, 4)}, bytes(4)), "shape"),  # type: ignore[arg-type]  # on purpose
        (safetensors_bytes('{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', bytes(4)), "shape"),
        (safetensors_bytes({"a": entry("F32", (True,), 0, 4)}, bytes(4)), "shape"),
        (safetensors_bytes({"a": entry("F32", (1,) * 9, 0, 4)}, bytes(4)), "at most 8 sizes"),
        (safetensors_bytes({"a": entry("F32", (1 << 40, 1 << 40), 0, 4)}, bytes(4)), "impossible shape"),
        (safetensors_bytes({"a": entry("F32", (2,), 0, 4)}, bytes(8)), "disagree"),
        (safetensors_bytes({"a": entry("F32", (0,), 4, 0)}, bytes(8)), "disagree"),
        (safetensors_bytes({"a": entry("F4", (3,), 0, 1)}, bytes(2)), "disagree"),
        (safetensors_bytes({"a": entry("F32", (1,), -4, 0)}, bytes(8)), "pair of byte offsets"),
        (safetensors_bytes({"a": entry("F32", (2,), 0, 8)}, bytes(4)), "of a file of"),
        (safetensors_bytes({"a": entry("F32", (1,), 0, 4), "b": entry("U8", (2,), 3, 5)}, bytes(8)), "overlap"),
        (safetensors_bytes('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},' * 1 + '"a":1}', bytes(4)), "twice"),
        (safetensors_bytes({"n" * 2000: entry("U8", (1,), 0, 1)}, bytes(1)), "a name of more than 1024 bytes"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_damaged_header_is_one_clear_error(file: Path, data: bytes, problem: str) -> None:
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=problem) as caught:
        read_header(file)
    assert str(file) in caught.value.message


def shards(folder: Path) -> Path:
    (folder / "one.safetensors").write_bytes(safetensors_bytes({"a": entry("U8", (1,), 0, 1)}, b"x"))
    (folder / "two.safetensors").write_bytes(
        safetensors_bytes({"b": entry("U8", (2,), 0, 2), "a": entry("U8", (3,), 2, 5)}, b"xxxxx")
    )
    return folder / INDEX_NAME


def test_shards_follow_the_index(tmp_path: Path) -> None:
    index = write_json(shards(tmp_path), {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})
    weight_map = read_index(index)
    assert weight_map == {"a": tmp_path / "one.safetensors", "b": tmp_path / "two.safetensors"}
    tensors, _ = read_shards(sorted(set(weight_map.values())), weight_map)
    assert {name: (info.file.name, info.shape) for name, info in tensors.items()} == {
        "a": ("one.safetensors", (1,)),
        "b": ("two.safetensors", (2,)),
    }


def test_an_index_that_promises_what_is_not_there(tmp_path: Path) -> None:
    index = write_json(shards(tmp_path), {"weight_map": {"b": "one.safetensors"}})
    weight_map = read_index(index)
    with pytest.raises(CheckpointError, match="places 1 tensors where they are not, 'b' among them"):
        read_shards(set(weight_map.values()), weight_map)
    with pytest.raises(CheckpointError, match=r"'a' is also in one\.safetensors"):
        read_shards([tmp_path / "one.safetensors", tmp_path / "two.safetensors"], {})


@pytest.mark.parametrize(
    "name", ["../one.safetensors", "/etc/passwd", "a/../../one", "..\\one", "C:\\one", "C:one", "", ".", "a\0b"]
)
def test_a_shard_outside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    index = write_json(shards(tmp_path), {"weight_map": {"a": name}})
    with pytest.raises(CheckpointError, match=r"not a file inside|not a regular file"):
        read_index(index)


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ({}, "has no weight_map"),
        ({"weight_map": []}, "must be an object"),
        ({"weight_map": {"a": 1}}, "must be an object whose values are strings"),
        ({"weight_map": {"a": "absent.safetensors"}}, "cannot be opened"),
        ({"weight_map": {str(n): f"{n}.safetensors" for n in range(5000)}}, "names 5000 shards"),
    ],
)
def test_a_damaged_index_is_one_clear_error(tmp_path: Path, contents: object, problem: str) -> None:
    index = write_json(tmp_path / INDEX_NAME, contents)
    with pytest.raises(CheckpointError, match=problem):
        read_index(index)


def test_linked_shards_of_a_download_cache_are_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    (blobs / "0a1b").write_bytes(safetensors_bytes({"a": entry("U8", (1,), 0, 1)}, b"x"))
    (snapshot / "one.safetensors").symlink_to(blobs / "0a1b")
    index = snapshot / INDEX_NAME
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}), encoding="utf-8")
    weight_map = read_index(index)
    assert read_shards(set(weight_map.values()), weight_map)[0]["a"].num_bytes == 1
