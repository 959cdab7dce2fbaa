"""A GGUF model in several files: ``name-00001-of-0000N.gguf``, each a GGUF of its own with part of the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pocketllm.checkpoint.gguf import GgufHeader, read_header, read_tensors
from pocketllm.checkpoint.tensor_info import MAX_TENSORS, TensorInfo
from pocketllm.errors import CheckpointError


def read_parts(files: Sequence[Path]) -> tuple[GgufHeader, ...]:
    """The headers of all parts, the first of which carries the model's metadata.

    Raises:
        CheckpointError: a part is malformed, or says that it is another part or belongs to another count.
    """
    headers = tuple(read_header(file) for file in files)
    for index, header in enumerate(headers):
        count = header.metadata.get("split.count", len(files))
        number = header.metadata.get("split.no", index)
        if len(files) == 1 and count not in (0, 1):
            raise CheckpointError(
                f"{header.path}: is part {number} of a model split in {count}, but is not named like one. "
                "Restore the published names (name-00001-of-0000N.gguf) and keep the parts together."
            )
        if count not in (0, len(files)) or number != index:
            raise CheckpointError(
                f"{header.path}: says it is part {number} of {count}, and its name says {index} of {len(files)}. "
                "Fetch the parts again."
            )
    return headers


def merge_tensors(headers: Sequence[GgufHeader]) -> dict[str, TensorInfo]:
    """The tensors of all parts.

    Raises:
        CheckpointError: two parts hold the same tensor, or their number is not what the first part announces.
    """
    tensors: dict[str, TensorInfo] = {}
    if sum(header.num_tensors for header in headers) > MAX_TENSORS:
        raise CheckpointError(f"{headers[0].path}: more than {MAX_TENSORS} tensors in its parts.")
    for header in headers:
        for name, info in read_tensors(header).items():
            if name in tensors:
                raise CheckpointError(f"{header.path}: tensor {name!r} is also in {tensors[name].file.name}.")
            tensors[name] = info
    announced = headers[0].metadata.get("split.tensors.count", len(tensors))
    if len(headers) > 1 and announced != len(tensors):
        raise CheckpointError(
            f"{headers[0].path}: announces {announced} tensors and the parts hold {len(tensors)}. Fetch them again."
        )
    return tensors
