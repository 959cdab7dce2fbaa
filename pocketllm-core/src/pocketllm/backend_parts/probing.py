"""Refusals that a probe gives before it looks at the model: sentences for a person, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pocketllm.errors import CheckpointError

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint
    from pocketllm.engine_args import EngineArgs


def refused_arguments(args: EngineArgs) -> str | None:
    """Why a backend with neither attention windows of its own nor speculative decoding cannot honour ``args``.

    Core has compared ``args.device`` with the backend's card before it probes.
    """
    if args.attention_window:
        return f"attention_window = {args.attention_window}: it has the checkpoint's own windows only. Set it to 0."
    if args.speculative_method is not None:
        return f"speculative_method = {args.speculative_method!r}: it has no speculative decoding. Leave it out."
    return None


def refused_tensors(checkpoint: Checkpoint, reads: Callable[[str], bool]) -> str | None:
    """Why the weights cannot be read: the headers are malformed, or ``reads`` is False for a stored type.

    Args:
        checkpoint: its headers are read; milliseconds.
        reads: told the name of a type as ``TensorInfo.dtype`` has it.
    """
    try:
        stored = {info.dtype for info in checkpoint.tensors.values()}
    except CheckpointError as error:
        return error.message
    unread = sorted(dtype for dtype in stored if not reads(dtype))
    return f"It does not read tensors of type {', '.join(unread)}." if unread else None
