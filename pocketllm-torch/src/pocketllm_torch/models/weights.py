"""Reading weights by name from either format, with their shapes checked."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch

from pocketllm.errors import CheckpointError
from pocketllm_torch.models.gguf_blocks import dequantize

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint, TensorInfo

# Written by old converters; computed here from the configuration.
_DERIVED_SUFFIXES = ("rotary_emb.inv_freq",)
# What a checkpoint may hold beside the language model: images, and heads that draft several tokens.
_OTHER_PARTS = ("model.visual.", "visual.", "model.vision_tower.", "vision_tower.", "multi_modal_projector.", "mtp.")
# Where the language model's tensors are when it is a part of something.
_TEXT_PREFIXES = ("model.language_model.", "language_model.model.")


class WeightReader:
    """The tensors of one checkpoint under Hugging Face names.

    Args:
        checkpoint: an opened checkpoint.
        gguf_name: the file's name of a Hugging Face name, used for GGUF checkpoints.

    A context manager: files stay mapped until it ends. Threads: one at a time.
    """

    def __init__(self, checkpoint: Checkpoint, gguf_name: Callable[[str], str]) -> None:
        self.format = checkpoint.format
        self._tensors = checkpoint.tensors
        self._stored_name = gguf_name if self.format == "gguf" else self._safetensors_name
        self._unread = {
            name
            for name in self._tensors
            if not name.endswith(_DERIVED_SUFFIXES) and not name.startswith(_OTHER_PARTS) and ".nextn." not in name
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

        Raises:
            CheckpointError: it is missing or has another shape.
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
        self._unread.discard(stored)
        return self._read_gguf(info) if self.format == "gguf" else self._read_safetensors(info)

    def read_extra(self, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
        """A tensor under the file's own name that need not be there."""
        info = self._tensors.get(name)
        if info is None:
            return None
        if info.shape != shape:
            raise CheckpointError(f"{info.file.name}: tensor {name!r} has shape {list(info.shape)}, not {list(shape)}.")
        self._unread.discard(name)
        return self._read_gguf(info) if self.format == "gguf" else self._read_safetensors(info)

    def check_all_read(self, ignore: Iterable[str] = ()) -> None:
        """Refuse a checkpoint with tensors nobody asked for: its model is not the one that was built.

        Raises:
            CheckpointError: names some of them.
        """
        unread = sorted(self._unread - {self._stored_name(name) for name in ignore})
        if unread:
            raise CheckpointError(
                f"The checkpoint has {len(unread)} tensors that this model has no place for ({', '.join(unread[:3])}): "
                "its family is not fully supported."
            )

    def _read_gguf(self, info: TensorInfo) -> torch.Tensor:
        data = torch.frombuffer(self._mapped(info.file), dtype=torch.uint8, count=info.num_bytes, offset=info.offset)
        return dequantize(info.dtype, data).view(info.shape)

    def _read_safetensors(self, info: TensorInfo) -> torch.Tensor:
        tensor: torch.Tensor = self._opened(info.file).get_tensor(info.name)
        return tensor if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.float()

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
