"""Reading weights by name from either format, with their shapes checked."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch

from pocketllm.errors import CheckpointError, UnsupportedFeatureError
from pocketllm_torch.weights.fp8_settings import FP8_TYPE, SCALE_TYPES, scale_tile
from pocketllm_torch.weights.fp8_tiles import dequantize_tiles, grid_shape
from pocketllm_torch.weights.gguf_blocks import dequantize

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint, TensorInfo

# Written by old converters; computed here from the configuration.
_DERIVED_SUFFIXES = ("rotary_emb.inv_freq",)
# What a checkpoint may hold beside the language model: images, and heads that draft several tokens.
_OTHER_PARTS = ("model.visual.", "visual.", "model.vision_tower.", "vision_tower.", "multi_modal_projector.", "mtp.")
# Where the language model's tensors are when it is a part of something.
_TEXT_PREFIXES = ("model.language_model.", "language_model.model.")
# Behind the name of an FP8 weight: that of its scales. What they are multiplied by, in spite of the name.
_SCALE_SUFFIX = "_scale_inv"


def drafting_layers(checkpoint: Checkpoint) -> range:
    """The layers of a GGUF file that draft tokens: the last ``nextn_predict_layers`` of its ``block_count``.

    Empty where the configuration counts every one of them among the model's layers.
    """
    if checkpoint.format != "gguf":
        return range(0)
    architecture = checkpoint.metadata["general.architecture"]
    num_drafting = checkpoint.metadata.get(f"{architecture}.nextn_predict_layers", 0)
    num_stored = checkpoint.metadata.get(f"{architecture}.block_count")
    num_layers = checkpoint.text_config.get("num_hidden_layers")
    if not (isinstance(num_drafting, int) and isinstance(num_stored, int) and isinstance(num_layers, int)):
        return range(0)
    return range(max(num_layers, num_stored - num_drafting), num_stored)


def _layer_number(name: str) -> int:
    """The layer that a GGUF tensor's name puts it in, or -1."""
    start, _, rest = name.partition(".")
    index = rest.partition(".")[0]
    return int(index) if start == "blk" and index.isascii() and index.isdecimal() and len(index) < 10 else -1


class WeightReader:
    """The tensors of one checkpoint under Hugging Face names.

    Args:
        checkpoint: an opened checkpoint.
        gguf_name: the file's name of a Hugging Face name, used for GGUF checkpoints.

    Raises:
        CheckpointError, UnsupportedFeatureError: ``quantization_config`` is not one that this reads.

    A context manager: files stay mapped until it ends. Threads: one at a time.
    """

    def __init__(self, checkpoint: Checkpoint, gguf_name: Callable[[str], str]) -> None:
        self.format = checkpoint.format
        self._tensors = checkpoint.tensors
        self._tile = None if self.format == "gguf" else scale_tile(checkpoint.text_config)
        self._stored_name = gguf_name if self.format == "gguf" else self._safetensors_name
        drafting = drafting_layers(checkpoint)
        self._unread = {
            name
            for name in self._tensors
            if not name.endswith(_DERIVED_SUFFIXES)
            and not name.startswith(_OTHER_PARTS)
            and _layer_number(name) not in drafting
        }
        self._files = contextlib.ExitStack()
        self._open: dict[Path, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.clear()
        self._files.close()

    def _safetensors_name(self, name: str) -> str:
        if name not in self._tensors and name.startswith("model."):
            for prefix in _TEXT_PREFIXES:
                if (inside := prefix + name.removeprefix("model.")) in self._tensors:
                    return inside
        return name

    def has(self, name: str) -> bool:
        return self._stored_name(name) in self._tensors

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor called ``name`` on the CPU: float16 and bfloat16 as stored, every other type as float32.

        FP8 weights come multiplied with their scales, which are read with them.

        Raises:
            CheckpointError: it or its scales are missing or have another shape.
            UnsupportedFeatureError: it is stored in a form that this does not read.
        """
        stored = self._stored_name(name)
        info = self._tensors.get(stored)
        if info is None:
            raise CheckpointError(f"The checkpoint has no tensor {stored!r}: it is incomplete, or of another family.")
        if info.shape != shape:
            raise CheckpointError(
                f"{info.file.name}: tensor {stored!r} has shape {list(info.shape)}, but the configuration asks for "
                f"{list(shape)}."
            )
        return self._values(info)

    def read_extra(self, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
        """A tensor under the file's own name that need not be there."""
        info = self._tensors.get(name)
        if info is None:
            return None
        if info.shape != shape:
            raise CheckpointError(f"{info.file.name}: tensor {name!r} has shape {list(info.shape)}, not {list(shape)}.")
        return self._values(info)

    def check_all_read(self, ignore: Iterable[str] = ()) -> None:
        """Refuse a checkpoint with tensors that were not read: its model is not the one that was built.

        Raises:
            CheckpointError: names some of them.
        """
        unread = sorted(self._unread - {self._stored_name(name) for name in ignore})
        if unread:
            raise CheckpointError(
                f"The checkpoint has {len(unread)} tensors that this model has no place for ({', '.join(unread[:3])}): "
                "its family is not fully supported."
            )

    def _values(self, info: TensorInfo) -> torch.Tensor:
        self._unread.discard(info.name)
        if self.format == "gguf":
            return self._read_gguf(info)
        return self._read_fp8(info) if info.dtype == FP8_TYPE else self._read_safetensors(info)

    def _read_gguf(self, info: TensorInfo) -> torch.Tensor:
        data = torch.frombuffer(self._mapped(info.file), dtype=torch.uint8, count=info.num_bytes, offset=info.offset)
        return dequantize(info.dtype, data).view(info.shape)

    def _read_safetensors(self, info: TensorInfo) -> torch.Tensor:
        tensor: torch.Tensor = self._opened(info.file).get_tensor(info.name)
        return tensor if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.float()

    def _read_fp8(self, info: TensorInfo) -> torch.Tensor:
        where = f"{info.file.name}: tensor {info.name!r}"
        if self._tile is None:
            raise CheckpointError(
                f"{where} is F8_E4M3, but config.json has no quantization_config, which says how it is scaled. Fetch "
                "it again.",
                param="quantization_config",
            )
        if len(info.shape) < 2:
            raise UnsupportedFeatureError(
                f"{where} is F8_E4M3 of shape {list(info.shape)}; weights with rows and columns are read in that type."
            )
        name = info.name + _SCALE_SUFFIX
        scales = self._tensors.get(name)
        if scales is None:
            raise CheckpointError(f"{where} is F8_E4M3, and the checkpoint has no tensor {name!r} with its scales.")
        where = f"{scales.file.name}: tensor {name!r}"
        expected = grid_shape(info.shape, self._tile)
        if scales.shape != expected:
            raise CheckpointError(
                f"{where} has shape {list(scales.shape)}, but tiles of {list(self._tile)} of {list(info.shape)} have "
                f"scales of shape {list(expected)}."
            )
        if scales.dtype not in SCALE_TYPES:
            raise UnsupportedFeatureError(
                f"{where} is of type {scales.dtype}; scales are read from {', '.join(SCALE_TYPES)}."
            )
        self._unread.discard(name)
        codes: torch.Tensor = self._opened(info.file).get_tensor(info.name)
        return dequantize_tiles(codes, self._read_safetensors(scales), self._tile)

    def _mapped(self, file: Path) -> mmap.mmap:
        if file not in self._open:
            with file.open("rb") as handle:
                # A private mapping: torch wants writable memory, and the file stays as it is.
                self._open[file] = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY)
        mapped: mmap.mmap = self._open[file]
        return mapped

    def _opened(self, file: Path) -> Any:
        if file not in self._open:
            from safetensors import safe_open

            self._open[file] = self._files.enter_context(safe_open(str(file), framework="pt", device="cpu"))
        return self._open[file]
