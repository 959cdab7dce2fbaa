"""The hooks that core finds through the entry point.

The probe asks the native code itself whether it reads a configuration, so the two cannot disagree; that loads a library
of a few megabytes and touches no device. Threads and memory come with ``pocketllm_open`` alone.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from pocketllm.backend_parts import refused_arguments, refused_tensors
from pocketllm.errors import PocketLLMError
from pocketllm.hookspecs import Engine, LoadReport, hookimpl
from pocketllm.types import BackendInfo, Offer, Refusal
from pocketllm_cpp.card import backend_card

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint
    from pocketllm.engine_args import EngineArgs

DTYPES = (None, "auto", "float32")
# Above torch's 50 where there is only a CPU, below it where torch has a GPU to run on.
_RANK = 60
_RANK_BESIDE_CUDA = 40


@hookimpl
def pocketllm_backend() -> BackendInfo:
    return backend_card()


@hookimpl
def pocketllm_probe(checkpoint: Checkpoint, args: EngineArgs) -> Offer | Refusal:
    reason = refused_arguments(args) or _refused_types(args) or _refused_checkpoint(checkpoint)
    if reason is not None:
        return Refusal(reason=reason)
    if args.device == "reference":
        reason = f"Runs {checkpoint.model_type} from {checkpoint.format} by definition, slowly, to check other devices."
        return Offer(rank=_RANK, reason=reason, device="reference")
    beside_cuda = args.device == "auto" and os.path.exists("/dev/nvidia0")
    reason = f"Runs {checkpoint.model_type} from {checkpoint.format} on cpu"
    if beside_cuda:
        return Offer(rank=_RANK_BESIDE_CUDA, reason=f"{reason}; there is a GPU, which it does not use.", device="cpu")
    return Offer(rank=_RANK, reason=f"{reason}, on quantised blocks as they are stored.", device="cpu")


@hookimpl
def pocketllm_open(args: EngineArgs, checkpoint: Checkpoint, report: LoadReport) -> Engine:
    report("import", 0.0)
    from pocketllm_cpp.opening import open_engine

    return open_engine(args, checkpoint, report)


def _refused_types(args: EngineArgs) -> str | None:
    if args.dtype not in DTYPES:
        return (
            f"dtype = {args.dtype!r}: it computes on the weights as they are stored. Leave it out, or give 'float32' "
            "for exact activations."
        )
    from pocketllm_cpp.kv_cache_types import kv_type

    try:
        kv_type(args.kv_cache_dtype)
    except PocketLLMError as error:
        return error.message
    return None


def _refused_checkpoint(checkpoint: Checkpoint) -> str | None:
    from pocketllm_cpp import _native

    refused = refused_tensors(checkpoint, _native.reads_dtype)
    if refused is not None:
        return refused
    try:
        _native.check_config(json.dumps(dict(checkpoint.config)))
    except PocketLLMError as error:
        return error.message
    return None
