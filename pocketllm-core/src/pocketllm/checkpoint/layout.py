"""Which files make up a checkpoint: a path, a format and the two overrides, turned into a list of files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, Literal

import msgspec

from pocketllm.checkpoint import gguf, safetensors
from pocketllm.checkpoint.bounded_file import BoundedReader, regular_file_size
from pocketllm.errors import CheckpointError, ConfigurationError

Format = Literal["safetensors", "gguf"]
FORMATS: Final = ("auto", "safetensors", "gguf")

_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_LISTED = 8


class Layout(msgspec.Struct, frozen=True):
    """The files of one checkpoint.

    Attributes:
        format: ``"safetensors"`` or ``"gguf"``.
        files: weight files; a split GGUF in the order of its parts; empty for a folder with a configuration alone.
        weight_map: a sharded safetensors checkpoint's tensor names to files, else empty.
        folder: where config.json and the tokenizer's files are looked for; None for a GGUF given as a file, whose
            neighbours belong to other models.
    """

    format: Format
    files: tuple[Path, ...]
    weight_map: dict[str, Path]
    folder: Path | None


def find_files(path: Path, model_format: str) -> Layout:
    """Find the files of a checkpoint; reads nothing but directory entries, a magic number and a shard index.

    Raises:
        ConfigurationError: an unknown ``model_format``.
        CheckpointError: nothing that is a checkpoint, or several where one must be chosen.
    """
    if model_format not in FORMATS:
        known = ", ".join(FORMATS)
        raise ConfigurationError(f"model_format is {model_format!r}; known are {known}.", param="model_format")
    if path.is_dir():
        return _in_folder(path, model_format)
    regular_file_size(path)
    found: Format = "gguf" if _is_gguf(path) else "safetensors"
    if found == "safetensors" and path.suffix != ".safetensors":
        raise CheckpointError(
            f"{path}: neither a GGUF file nor a .safetensors file. Give one of those, or the folder that holds them."
        )
    if model_format not in ("auto", found):
        raise CheckpointError(f"{path}: is {found}, and model_format asks for {model_format}. Use model_format='auto'.")
    if found == "gguf":
        return Layout("gguf", split_parts(path), {}, None)
    return Layout("safetensors", (path,), {}, path.parent)


def _is_gguf(path: Path) -> bool:
    with BoundedReader(path) as reader:
        return reader.size >= len(gguf.MAGIC) and reader.read(len(gguf.MAGIC), "the magic number") == gguf.MAGIC


def _in_folder(folder: Path, model_format: str) -> Layout:
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be listed ({error}). Check its permissions.") from error
    tensors = [name for name in names if name.endswith(".safetensors")]
    models = [name for name in names if name.endswith(".gguf")]
    has_config = "config.json" in names
    if model_format != "gguf" and (tensors or safetensors.INDEX_NAME in names):
        return _safetensors_layout(folder, names, tensors)
    if model_format != "safetensors" and models:
        return Layout("gguf", _one_model(folder, models), {}, folder)
    if has_config and model_format != "gguf":
        return Layout("safetensors", (), {}, folder)
    wanted = "a .gguf file" if model_format == "gguf" else "model.safetensors, its index, config.json or a .gguf file"
    other = " (it holds PyTorch .bin weights, which are not read: convert them to safetensors)"
    hint = other if any(name.endswith(".bin") for name in names) else ""
    raise CheckpointError(f"{folder}: not a checkpoint: there is no {wanted} in it{hint}.")


def _safetensors_layout(folder: Path, names: list[str], tensors: list[str]) -> Layout:
    if safetensors.SINGLE_NAME in names:
        return Layout("safetensors", (folder / safetensors.SINGLE_NAME,), {}, folder)
    if safetensors.INDEX_NAME in names:
        weight_map = safetensors.read_index(folder / safetensors.INDEX_NAME)
        return Layout("safetensors", tuple(sorted(set(weight_map.values()))), weight_map, folder)
    if len(tensors) > 1:
        raise CheckpointError(
            f"{folder}: holds several safetensors files ({_listed(tensors)}) and no {safetensors.INDEX_NAME}. "
            "Fetch the index too, or give the path of one file."
        )
    return Layout("safetensors", (folder / tensors[0],), {}, folder)


def _one_model(folder: Path, models: list[str]) -> tuple[Path, ...]:
    """The GGUF of a folder; the parts of one split model count as one."""
    splits = [_SPLIT_NAME.fullmatch(name) for name in models]
    groups = {
        (split["stem"], split["count"]) if split else (name, "") for split, name in zip(splits, models, strict=True)
    }
    if len(groups) > 1:
        raise CheckpointError(f"{folder}: holds several GGUF models ({_listed(models)}). Give the path of one of them.")
    return split_parts(folder / models[0])


def split_parts(path: Path) -> tuple[Path, ...]:
    """All parts of the split GGUF that ``path`` is one of, in order; ``path`` alone when it is not a part by its name.

    Raises:
        CheckpointError: a part is missing.
    """
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return (path,)
    count = int(match["count"])
    if not 1 <= int(match["part"]) <= count:
        raise CheckpointError(f"{path}: a part numbered {match['part']} of {match['count']}. Check the file's name.")
    parts = tuple(path.with_name(f"{match['stem']}-{part:05d}-of-{count:05d}.gguf") for part in range(1, count + 1))
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise CheckpointError(f"{path}: a split model whose parts are not all here; missing: {_listed(missing)}.")
    return parts


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more
