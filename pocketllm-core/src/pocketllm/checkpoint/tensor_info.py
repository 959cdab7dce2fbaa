"""Where one tensor lies in a checkpoint file, and the check that no two claim the same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import msgspec

from pocketllm.errors import CheckpointError

# A DeepSeek-V4 release, with one tensor per expert and one per scale, has about 100 000.
MAX_TENSORS = 1 << 18
MAX_TENSOR_NAME_BYTES = 1024
MAX_DIMENSIONS = 8
MAX_ELEMENTS = 1 << 60


class TensorInfo(msgspec.Struct, frozen=True):
    """One stored tensor.

    Attributes:
        name: the name in the file (GGUF and Hugging Face names differ; nothing is renamed here).
        dtype: the file format's own word: ``"BF16"``, ``"Q4_1"``, ``"F8_E4M3"``.
        shape: sizes, outermost first in both formats, so a linear weight is ``(out, in)``.
        file: the file that holds it.
        offset: absolute byte offset of its first byte in ``file``.
        num_bytes: stored size.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


def check_extents(path: Path, tensors: Iterable[TensorInfo]) -> None:
    """Refuse tensors of one file that overlap. Each is already known to lie inside the file."""
    ordered = sorted((info for info in tensors if info.num_bytes), key=lambda info: info.offset)
    for left, right in pairwise(ordered):
        if left.offset + left.num_bytes > right.offset:
            raise CheckpointError(
                f"{path}: tensors {left.name!r} (bytes {left.offset} to {left.offset + left.num_bytes}) and "
                f"{right.name!r} (from byte {right.offset}) overlap. The file is damaged; fetch it again."
            )
