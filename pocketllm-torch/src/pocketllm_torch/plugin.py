"""The hooks that core finds through the entry point. Only ``pocketllm_open`` imports torch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pocketllm.backend_parts import refused_arguments, refused_tensors
from pocketllm.errors import CheckpointError, UnsupportedFeatureError
from pocketllm.hookspecs import Engine, LoadReport, hookimpl
from pocketllm.types import BackendInfo, Offer, Refusal
from pocketllm_torch.card import backend_card
from pocketllm_torch.models.registry import FAMILIES
from pocketllm_torch.weights.fp8_settings import FP8_TYPE, scale_tile

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint
    from pocketllm.engine_args import EngineArgs

_PLAIN_TYPES = {"F32", "F16", "BF16"}
_BLOCK_TYPES = {
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
}
GGUF_TYPES = frozenset(_PLAIN_TYPES | _BLOCK_TYPES)
SAFETENSORS_TYPES = frozenset({"F32", "F16", "BF16"})
EXPERT_FAMILIES = ("qwen3_5_moe_text",)
ROPE_TYPES = ("default", "linear", "llama3")
KV_CACHE_DTYPES = ("auto",)


@hookimpl
def pocketllm_backend() -> BackendInfo:
    return backend_card()


@hookimpl
def pocketllm_probe(checkpoint: Checkpoint, args: EngineArgs) -> Offer | Refusal:
    reason = (
        refused_arguments(args) or _refused_cache(args) or _refused_model(checkpoint) or _refused_weights(checkpoint)
    )
    if reason is not None:
        return Refusal(reason=reason)
    device = args.device if args.device != "auto" else "cuda" if os.path.exists("/dev/nvidia0") else "cpu"
    return Offer(rank=50, reason=f"Runs {checkpoint.model_type} from {checkpoint.format} on {device}.", device=device)


@hookimpl
def pocketllm_open(args: EngineArgs, checkpoint: Checkpoint, report: LoadReport) -> Engine:
    report("import", 0.0)
    from pocketllm_torch.engine.opening import open_engine

    return open_engine(args, checkpoint, report)


def _refused_cache(args: EngineArgs) -> str | None:
    if args.kv_cache_dtype in KV_CACHE_DTYPES:
        return None
    return f"kv_cache_dtype = {args.kv_cache_dtype!r}: its cache has the dtype of the activations. Leave it 'auto'."


def _refused_model(checkpoint: Checkpoint) -> str | None:
    config = checkpoint.text_config
    model_type = str(config.get("model_type", checkpoint.model_type))
    if model_type not in FAMILIES:
        return f"It has no model family {model_type!r} yet; it has {', '.join(sorted(FAMILIES))}."
    for key, default in (("hidden_act", "silu"), ("hidden_activation", "gelu_pytorch_tanh")):
        if config.get(key, default) != default:
            return f"{key} = {config[key]!r}: its {model_type} has {default} only."
    if config.get("num_experts") and model_type not in EXPERT_FAMILIES:
        return "It has no mixture of experts in this family."
    if config.get("use_sliding_window"):
        return "use_sliding_window = true: it has sliding windows in Gemma 3 only."
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(key):
            return f"{key} = {config[key]!r}: it has no soft capping."
    try:
        scale_tile(config)
    except (CheckpointError, UnsupportedFeatureError) as error:
        return error.message
    for key in ("rope_parameters", "rope_scaling"):
        for kind in _rope_types(config.get(key)):
            if kind not in ROPE_TYPES:
                return f"{key} asks for {kind!r}; it has {', '.join(ROPE_TYPES)}."
    return None


def _rope_types(rope: object) -> list[object]:
    """The rules a setting asks for: one, or one per kind of layer."""
    if not isinstance(rope, dict):
        return []
    by_kind = [value for value in rope.values() if isinstance(value, dict)]
    return [each.get("rope_type", each.get("type", "default")) for each in by_kind or [rope]]


def _refused_weights(checkpoint: Checkpoint) -> str | None:
    if checkpoint.format == "gguf":
        read = GGUF_TYPES
    elif scale_tile(checkpoint.text_config) is None:
        read = SAFETENSORS_TYPES
    else:
        read = SAFETENSORS_TYPES | {FP8_TYPE}
    return refused_tensors(checkpoint, read.__contains__)
