"""The hooks that core finds through the entry point. Only ``pocketllm_open`` imports torch."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import TYPE_CHECKING

from pocketllm.errors import CheckpointError
from pocketllm.hookspecs import Engine, LoadReport, hookimpl
from pocketllm.types import BackendInfo, Offer, Refusal
from pocketllm_torch.models.registry import FAMILIES
from pocketllm_torch.options import OPTION_SPECS

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint
    from pocketllm.engine_args import EngineArgs

DEVICES = ("cpu", "cuda")
GGUF_TYPES = frozenset({"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"})
SAFETENSORS_TYPES = frozenset({"F32", "F16", "BF16"})
ROPE_TYPES = ("default", "linear", "llama3")
KV_CACHE_DTYPES = ("auto",)


@hookimpl
def pocketllm_backend() -> BackendInfo:
    return BackendInfo(
        name="torch",
        version=version("pocketllm-torch"),
        summary="PyTorch and Triton; the reference on CPUs, the fast path on CUDA.",
        model_formats=("safetensors", "gguf"),
        devices=DEVICES,
        options=OPTION_SPECS,
        holds_gil=True,
    )


@hookimpl
def pocketllm_probe(checkpoint: Checkpoint, args: EngineArgs) -> Offer | Refusal:
    for reason in (_refused_arguments(args), _refused_model(checkpoint), _refused_weights(checkpoint)):
        if reason is not None:
            return Refusal(reason=reason)
    device = args.device if args.device != "auto" else "cuda" if os.path.exists("/dev/nvidia0") else "cpu"
    return Offer(rank=50, reason=f"Runs {checkpoint.model_type} from {checkpoint.format} on {device}.", device=device)


@hookimpl
def pocketllm_open(args: EngineArgs, checkpoint: Checkpoint, report: LoadReport) -> Engine:
    report("import", 0.0)
    from pocketllm_torch.engine.opening import open_engine

    return open_engine(args, checkpoint, report)


def _refused_arguments(args: EngineArgs) -> str | None:
    if args.device != "auto" and args.device not in DEVICES:
        return f"It runs on {' and '.join(DEVICES)}, not on {args.device!r}."
    if args.kv_cache_dtype not in KV_CACHE_DTYPES:
        return f"kv_cache_dtype = {args.kv_cache_dtype!r}: its cache has the dtype of the activations. Leave it 'auto'."
    if args.attention_window:
        return f"attention_window = {args.attention_window}: it has full attention only. Set it to 0."
    if args.speculative_method is not None:
        return f"speculative_method = {args.speculative_method!r}: it has no speculative decoding. Leave it out."
    return None


def _refused_model(checkpoint: Checkpoint) -> str | None:
    if checkpoint.model_type not in FAMILIES:
        return f"It has no model family {checkpoint.model_type!r} yet; it has {', '.join(sorted(FAMILIES))}."
    config = checkpoint.config
    if config.get("hidden_act", "silu") != "silu":
        return f"hidden_act = {config['hidden_act']!r}: its {checkpoint.model_type} has silu only."
    if config.get("num_experts"):
        return "It has no mixture of experts in this family."
    if config.get("quantization_config"):
        return "Quantised safetensors are not read: use the original weights or a GGUF file."
    for key in ("rope_parameters", "rope_scaling"):
        rope = config.get(key)
        if isinstance(rope, dict):
            kind = rope.get("rope_type", rope.get("type", "default"))
            if kind not in ROPE_TYPES:
                return f"{key} asks for {kind!r}; it has {', '.join(ROPE_TYPES)}."
    return None


def _refused_weights(checkpoint: Checkpoint) -> str | None:
    try:
        used = {info.dtype for info in checkpoint.tensors.values()}
    except CheckpointError as error:
        return error.message
    unknown = sorted(used - (GGUF_TYPES if checkpoint.format == "gguf" else SAFETENSORS_TYPES))
    if unknown:
        return f"It does not read tensors of type {', '.join(unknown)}."
    return None
