"""What a checkpoint is, and what this build can run. Reads headers only."""

from __future__ import annotations

import os

from pocketllm.checkpoint import open_checkpoint
from pocketllm.errors import CheckpointError
from pocketllm_cpp import _native

_QWEN3_5 = frozenset({"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"})


def detect_architecture(path: str | os.PathLike[str]) -> str:
    """The checkpoint's family, as ``model_type`` names it (``"qwen3_5_text"``), for safetensors and GGUF alike.

    Raises:
        CheckpointError: there is no checkpoint at ``path``, or it is malformed.
    """
    return open_checkpoint(path).model_type


def registered_architectures() -> list[str]:
    """Every ``model_type`` that this build can run."""
    return _native.families()


def is_qwen3_5_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a Qwen3.5 checkpoint, dense or with experts, is at ``path``; False also when none can be read there."""
    try:
        return detect_architecture(path) in _QWEN3_5
    except CheckpointError:
        return False
