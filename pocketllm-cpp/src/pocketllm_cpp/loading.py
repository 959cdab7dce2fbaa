"""From a checkpoint to a native runtime."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pocketllm.errors import CheckpointError
from pocketllm_cpp import _native
from pocketllm_cpp.kv_cache_types import kv_type

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint


@dataclass(frozen=True)
class RuntimeSettings:
    """How a model is held in memory. Zeros mean "as csrc/engine/runtime.h chooses"."""

    device: str = "cpu"
    activation: str = "int8"
    kv_cache_dtype: str = "auto"
    num_threads: int = 0
    max_model_len: int = 0
    num_slots: int = 1
    kv_cache_bytes: int = 0
    num_snapshots: int | None = None
    num_layers: int = 0


def load_runtime(
    checkpoint: Checkpoint, settings: RuntimeSettings, report: Callable[[float], None] | None = None
) -> _native.Runtime:
    """Map the files, repack the weights, make the caches; seconds, with the interpreter's lock released.

    Args:
        report: called with the fraction done, from the calling thread.

    Raises:
        CheckpointError, ConfigurationError, UnsupportedFeatureError: as their messages say.
    """
    if not checkpoint.files:
        raise CheckpointError(f"{checkpoint.path}: has a configuration and no weights. Fetch its weights too.")
    return _native.Runtime(
        # A part of a split GGUF leads to the others; sharded safetensors are found by their folder.
        str(checkpoint.files[0] if checkpoint.format == "gguf" else checkpoint.path),
        json.dumps(dict(checkpoint.config)),
        device=settings.device,
        activation=settings.activation,
        kv_type=kv_type(settings.kv_cache_dtype),
        num_threads=settings.num_threads,
        max_model_len=settings.max_model_len,
        num_slots=settings.num_slots,
        kv_cache_bytes=settings.kv_cache_bytes,
        num_snapshots=settings.num_snapshots,
        num_layers=settings.num_layers,
        progress=report,
    )


def max_positions(checkpoint: Checkpoint) -> int | None:
    """Positions the checkpoint was made for; None when it does not say."""
    config = checkpoint.config
    text_config = config.get("text_config")
    nested = text_config if isinstance(text_config, dict) else {}
    limit = config.get("max_position_embeddings", nested.get("max_position_embeddings"))
    return limit if isinstance(limit, int) else None
