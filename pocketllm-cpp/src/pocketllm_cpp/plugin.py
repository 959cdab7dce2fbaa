"""The hooks that core finds through the entry point.

The probe asks the native code itself whether it reads a configuration, so the two cannot disagree; that loads a library
of a few megabytes and touches no device. Threads and memory come with ``pocketllm_open`` alone.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from typing import TYPE_CHECKING

from pocketllm.errors import CheckpointError, PocketLLMError
from pocketllm.hookspecs import Engine, LoadReport, hookimpl
from pocketllm.types import BackendInfo, Offer, Refusal
from pocketllm_cpp.options import OPTION_SPECS

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint
    from pocketllm.engine_args import EngineArgs

DEVICES = ("cpu",)
DTYPES = (None, "auto", "float32")
# Above torch's 50 where there is only a CPU, below it where torch has a GPU to run on.
_RANK = 60
_RANK_BESIDE_CUDA = 40


@hookimpl
def pocketllm_backend() -> BackendInfo:
    return BackendInfo(
        name="cpp",
        version=version("pocketllm-cpp"),
        summary="Native code that computes on quantised blocks; the fast path on CPUs.",
        model_formats=("safetensors", "gguf"),
        devices=DEVICES,
        options=OPTION_SPECS,
        holds_gil=False,
    )


@hookimpl
def pocketllm_probe(checkpoint: Checkpoint, args: EngineArgs) -> Offer | Refusal:
    for reason in (_refused_arguments(args), _refused_weights(checkpoint), _refused_model(checkpoint)):
        if reason is not None:
            return Refusal(reason=reason)
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


def _refused_arguments(args: EngineArgs) -> str | None:
    if args.device != "auto" and args.device not in DEVICES:
        return f"It runs on {' and '.join(DEVICES)}, not on {args.device!r}."
    if args.dtype not in DTYPES:
        return (
            f"dtype = {args.dtype!r}: it computes on the weights as they are stored. Leave it out, or give 'float32' "
            "for exact activations."
        )
    if args.attention_window:
        return f"attention_window = {args.attention_window}: it has the checkpoint's own windows only. Set it to 0."
    if args.speculative_method is not None:
        return f"speculative_method = {args.speculative_method!r}: it has no speculative decoding. Leave it out."
    from pocketllm_cpp.kv_cache_types import kv_type

    try:
        kv_type(args.kv_cache_dtype)
    except PocketLLMError as error:
        return error.message
    return None


def _refused_weights(checkpoint: Checkpoint) -> str | None:
    from pocketllm_cpp import _native

    try:
        used = {info.dtype for info in checkpoint.tensors.values()}
    except CheckpointError as error:
        return error.message
    unknown = sorted(dtype for dtype in used if not _native.reads_dtype(dtype))
    if unknown:
        return f"It does not read tensors of type {', '.join(unknown)}."
    return None


def _refused_model(checkpoint: Checkpoint) -> str | None:
    from pocketllm_cpp import _native

    try:
        _native.check_config(json.dumps(dict(checkpoint.config)))
    except PocketLLMError as error:
        return error.message
    return None
