"""Safetensors headers, single file or sharded with an index, read without tensors and without the library.

Layout: u64 header length, that many bytes of JSON ``{name: {dtype, shape, data_offsets}}`` with an optional
``__metadata__`` of strings, then the data that the offsets count from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final, NoReturn

from pocketllm.checkpoint.bounded_file import BoundedReader, parse_json_object, read_json_file, regular_file_size
from pocketllm.checkpoint.tensor_info import (
    MAX_DIMENSIONS,
    MAX_ELEMENTS,
    MAX_TENSOR_NAME_BYTES,
    MAX_TENSORS,
    TensorInfo,
    check_extents,
)
from pocketllm.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_MAX_HEADER_BYTES = 64 << 20
_MAX_INDEX_BYTES = 64 << 20
_MAX_SHARDS = 4096

DTYPE_BITS: Final[dict[str, int]] = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
}


def read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """The tensors of one file by name, and its ``__metadata__`` (empty when absent).

    Raises:
        CheckpointError: malformed anywhere; names the file, the tensor and the field.
    """
    with BoundedReader(path) as reader:
        length = reader.u64("the header length")
        if length > _MAX_HEADER_BYTES:
            reader.fail(f"the header claims {length} bytes, more than the {_MAX_HEADER_BYTES} allowed")
        raw = reader.read(length, "the JSON header")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            reader.fail(f"the JSON header is not UTF-8 ({error.reason} at its byte {error.start})")
        del raw
        data_start, file_bytes = reader.position, reader.size
    header = parse_json_object(text, where=f"{path}: the JSON header")
    if len(header) > MAX_TENSORS:
        raise CheckpointError(f"{path}: {len(header)} tensors, more than the {MAX_TENSORS} allowed.")
    metadata = _text_mapping(header.pop("__metadata__", {}), f"{path}: __metadata__")
    tensors = {name: _read_entry(path, name, entry, data_start, file_bytes) for name, entry in header.items()}
    check_extents(path, tensors.values())
    return tensors, metadata


def _read_entry(path: Path, name: str, entry: object, data_start: int, file_bytes: int) -> TensorInfo:
    def fail(problem: str) -> NoReturn:
        raise CheckpointError(f"{path}: tensor {name[:200]!r}: {problem}. The file is damaged; fetch it again.")

    if len(name.encode("utf-8")) > MAX_TENSOR_NAME_BYTES:
        fail(f"a name of more than {MAX_TENSOR_NAME_BYTES} bytes")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        fail("an entry must be an object with exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        fail(f"unknown dtype {str(dtype)[:100]!r}; known are {', '.join(DTYPE_BITS)}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        fail(f"shape {str(shape)[:200]} is not a list of at most {MAX_DIMENSIONS} sizes")
    if not _are_sizes(offsets) or len(offsets) != 2:
        fail(f"data_offsets {str(offsets)[:200]} is not a pair of byte offsets")
    num_elements = 1
    for size in shape:
        num_elements *= size
        if num_elements > MAX_ELEMENTS:
            fail(f"the impossible shape {shape}")
    begin, end = offsets
    if (num_elements * bits) % 8 or end - begin != num_elements * bits // 8:
        fail(f"shape {shape} of {dtype} and data_offsets {offsets} disagree")
    if data_start + end > file_bytes:
        fail(f"its data ends at byte {data_start + end} of a file of {file_bytes}")
    return TensorInfo(name, str(dtype), tuple(shape), path, data_start + begin, end - begin)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= MAX_ELEMENTS for item in value)


def _text_mapping(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise CheckpointError(f"{where}: must be an object whose values are strings. Fetch the file again.")
    return value


def read_index(path: Path) -> dict[str, Path]:
    """The ``weight_map`` of an index: tensor name to shard file, which must lie in the index's folder and exist."""
    index = read_json_file(path, max_bytes=_MAX_INDEX_BYTES)
    if "weight_map" not in index:
        raise CheckpointError(f"{path}: has no weight_map. Fetch the file again.")
    weight_map = _text_mapping(index["weight_map"], f"{path}: weight_map")
    shards = {name: _shard_path(path, name) for name in set(weight_map.values())}
    if len(shards) > _MAX_SHARDS:
        raise CheckpointError(f"{path}: names {len(shards)} shards, more than the {_MAX_SHARDS} allowed.")
    for shard in shards.values():
        regular_file_size(shard)
    return {tensor: shards[name] for tensor, name in weight_map.items()}


def _shard_path(index: Path, name: str) -> Path:
    # Judged as text: in a Hugging Face cache an honest shard is itself a link to a file elsewhere.
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    outside = posix.is_absolute() or windows.is_absolute() or windows.drive or ".." in windows.parts
    if outside or not posix.parts or "\x00" in name:
        raise CheckpointError(f"{index}: the shard name {name[:200]!r} is not a file inside the checkpoint's folder.")
    return index.parent / posix


def read_shards(files: Iterable[Path], weight_map: Mapping[str, Path]) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """All tensors of a sharded checkpoint, and the shards' metadata merged.

    Where the map names a tensor's shard, that one counts and a copy elsewhere does not.

    Raises:
        CheckpointError: a mapped tensor is missing, or an unmapped one is in two shards.
    """
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, str] = {}
    for file in files:
        found, notes = read_header(file)
        metadata.update(notes)
        for name, info in found.items():
            if weight_map.get(name, file) != file:
                continue
            if name in tensors:
                raise CheckpointError(f"{file}: tensor {name!r} is also in {tensors[name].file.name}.")
            tensors[name] = info
    missing = [name for name in weight_map if name not in tensors]
    if missing:
        raise CheckpointError(
            f"{weight_map[missing[0]]}: the index places {len(missing)} tensors where they are not, {missing[0]!r} "
            "among them. Fetch the checkpoint again."
        )
    return tensors, metadata
