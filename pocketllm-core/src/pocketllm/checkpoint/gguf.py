"""GGUF headers, versions 2 and 3: metadata at once, the tensor list when asked for, tensor data never.

Layout, little-endian: ``GGUF``, u32 version, u64 tensor count, u64 metadata count, the metadata, the tensor list, and
then the data, aligned to ``general.alignment``. Dimensions are stored fastest first; here they are outermost first.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from pocketllm.checkpoint.bounded_file import BoundedReader
from pocketllm.checkpoint.gguf_metadata import GgufMetadata, read_metadata
from pocketllm.checkpoint.gguf_types import TENSOR_TYPES
from pocketllm.checkpoint.tensor_info import (
    MAX_ELEMENTS,
    MAX_TENSOR_NAME_BYTES,
    MAX_TENSORS,
    TensorInfo,
    check_extents,
)

MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 16
_MAX_GGUF_DIMENSIONS = 4
_SMALLEST_TENSOR_ENTRY_BYTES = 8 + 4 + 4 + 8


class GgufHeader(msgspec.Struct, frozen=True):
    """The front of one GGUF file. ``tensor_list_start`` is the absolute offset of the tensor list."""

    path: Path
    version: int
    file_bytes: int
    metadata: GgufMetadata
    num_tensors: int
    tensor_list_start: int
    alignment: int


def read_header(path: Path) -> GgufHeader:
    """Read the metadata of one GGUF file.

    Raises:
        CheckpointError: not a GGUF file of version 2 or 3, or malformed; names the file, the byte and the field.
    """
    with BoundedReader(path) as reader:
        magic = reader.read(4, "the magic number")
        if magic != MAGIC:
            reader.fail(f"not a GGUF file: it begins with {magic!r}")
        version = reader.u32("the version")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            big_endian = " (written for big-endian machines)" if swapped in (2, 3) else ""
            reader.fail(f"GGUF version {version}{big_endian} where 2 or 3 is supported; convert the model again")
        num_tensors = reader.u64("the tensor count")
        num_keys = reader.u64("the metadata count")
        reader.need(_SMALLEST_TENSOR_ENTRY_BYTES * num_tensors, f"a list of {num_tensors} tensors")
        if num_tensors > MAX_TENSORS:
            reader.fail(f"the header claims {num_tensors} tensors, more than the {MAX_TENSORS} allowed")
        metadata = read_metadata(reader, num_keys)
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 1 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
            reader.fail(f"general.alignment is {alignment!r}, not a power of two up to {_MAX_ALIGNMENT}")
        return GgufHeader(
            path=path,
            version=version,
            file_bytes=reader.size,
            metadata=metadata,
            num_tensors=num_tensors,
            tensor_list_start=reader.position,
            alignment=alignment,
        )


def read_tensors(header: GgufHeader) -> dict[str, TensorInfo]:
    """The tensor list of one file, by name in file order.

    Raises:
        CheckpointError: a malformed entry, an unknown type, or data outside the file or shared by two tensors.
    """
    with BoundedReader(header.path) as reader:
        if reader.size != header.file_bytes:
            reader.fail(f"the file had {header.file_bytes} bytes when it was opened and has {reader.size} now")
        reader.position = header.tensor_list_start
        entries: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        for index in range(header.num_tensors):
            name = reader.text(MAX_TENSOR_NAME_BYTES, f"the name of tensor {index}")
            if name in entries:
                reader.fail(f"the tensor name {name!r} appears twice")
            entries[name] = _read_entry(reader, name, header.alignment)
        data_start = -(-reader.position // header.alignment) * header.alignment
        tensors: dict[str, TensorInfo] = {}
        for name, (dtype, shape, relative, num_bytes) in entries.items():
            offset = data_start + relative
            if offset + num_bytes > header.file_bytes:
                reader.fail(
                    f"tensor {name!r} takes bytes {offset} to {offset + num_bytes} of a file of {header.file_bytes}"
                )
            tensors[name] = TensorInfo(name, dtype, shape, header.path, offset, num_bytes)
    check_extents(header.path, tensors.values())
    return tensors


def _read_entry(reader: BoundedReader, name: str, alignment: int) -> tuple[str, tuple[int, ...], int, int]:
    num_dimensions = reader.u32(f"the number of dimensions of tensor {name!r}")
    if num_dimensions > _MAX_GGUF_DIMENSIONS:
        reader.fail(f"tensor {name!r} claims {num_dimensions} dimensions; GGUF has at most {_MAX_GGUF_DIMENSIONS}")
    sizes = [reader.u64(f"dimension {index} of tensor {name!r}") for index in range(num_dimensions)]
    kind = reader.u32(f"the type of tensor {name!r}")
    relative = reader.u64(f"the offset of tensor {name!r}")
    num_elements = 1
    for size in sizes:
        num_elements *= size
        if size > MAX_ELEMENTS or num_elements > MAX_ELEMENTS:
            reader.fail(f"tensor {name!r} claims the impossible shape {sizes[::-1]}")
    layout = TENSOR_TYPES.get(kind)
    if layout is None:
        reader.fail(f"tensor {name!r} has the storage type {kind}, which is unknown or withdrawn from the format")
    row = sizes[0] if sizes else 1
    if row % layout.block_elements:
        reader.fail(f"tensor {name!r} has rows of {row} elements, which {layout.name} cannot divide into blocks")
    if relative % alignment:
        reader.fail(f"tensor {name!r} starts at offset {relative}, which is not aligned to {alignment}")
    num_bytes = num_elements // layout.block_elements * layout.block_bytes
    return layout.name, tuple(reversed(sizes)), relative, num_bytes
