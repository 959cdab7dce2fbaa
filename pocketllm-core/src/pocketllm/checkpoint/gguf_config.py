"""A GGUF file's metadata in the words of Hugging Face's ``config.json``, so that backends read one vocabulary."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pocketllm.checkpoint.gguf_metadata import GgufMetadata
from pocketllm.checkpoint.tensor_info import TensorInfo
from pocketllm.errors import CheckpointError

# general.architecture -> model_type; an architecture that is not here keeps its own name.
MODEL_TYPES: Final[dict[str, str]] = {
    "gemma3": "gemma3_text",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
    "deepseek4": "deepseek_v4",
}

_INTEGERS: Final[dict[str, str]] = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "vocab_size": "vocab_size",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "full_attention_interval": "full_attention_interval",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
_NUMBERS: Final[dict[str, str]] = {
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_ROPE_NUMBERS: Final[dict[str, str]] = {
    "rope.scaling.factor": "factor",
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
# Converters write 0 where a model has no such thing.
_ZERO_MEANS_ABSENT: Final = frozenset({"sliding_window", "num_experts", "num_experts_per_tok", "moe_intermediate_size"})

_LIMIT = 1 << 31
_MAX_LAYERS = 4096
_GEMMA3_PATTERN = 6
_QWEN35_INTERVAL = 4
_ALMOST_SINGLE_MAX = 3.4e38


def architecture(metadata: GgufMetadata, path: Path) -> str:
    value = metadata.get("general.architecture")
    if not isinstance(value, str) or not value:
        raise CheckpointError(f"{path}: general.architecture is {value!r}. The file names no model family.")
    return value


def model_type(metadata: GgufMetadata, path: Path) -> str:
    """Hugging Face's name for the file's model family."""
    arch = architecture(metadata, path)
    return MODEL_TYPES.get(arch, arch)


def translate_config(metadata: GgufMetadata, tensors: Mapping[str, TensorInfo], path: Path) -> dict[str, object]:
    """Build a ``config.json`` mapping from metadata and tensor names.

    Single-precision numbers come back as the decimal that was meant (1e-05, not 9.999999747378752e-06). A key the
    file lacks is absent here too, unless the format defines its default. ``eos_token_id`` and ``bos_token_id`` are
    left out: in a GGUF they belong to the tokenizer.

    Raises:
        CheckpointError: a value of the wrong type, or not a finite positive number.
    """
    arch = architecture(metadata, path)
    config: dict[str, object] = {"model_type": MODEL_TYPES.get(arch, arch)}
    for suffix, name in _INTEGERS.items():
        _copy(metadata, f"{arch}.{suffix}", name, config, _positive_integer, path)
    for suffix, name in _NUMBERS.items():
        _copy(metadata, f"{arch}.{suffix}", name, config, _positive_number, path)
    heads = config.get("num_attention_heads")
    if "num_key_value_heads" not in config and heads is not None:
        config["num_key_value_heads"] = heads
    hidden = config.get("hidden_size")
    if "head_dim" not in config and isinstance(hidden, int) and isinstance(heads, int):
        config["head_dim"] = hidden // heads
    if "vocab_size" not in config:
        embedding = tensors.get("token_embd.weight")
        rows = embedding.shape[0] if embedding and embedding.shape else metadata.array_length("tokenizer.ggml.tokens")
        if rows:
            config["vocab_size"] = rows
    config.setdefault("rope_theta", 10000.0)
    config["rope_scaling"] = _rope_scaling(metadata, arch, path)
    # A vocabulary-only file has no head either, which says nothing about the model.
    config["tie_word_embeddings"] = bool(tensors) and "output.weight" not in tensors
    _FAMILIES.get(arch, _no_extras)(metadata, tensors, config, path)
    return config


def _rope_scaling(metadata: GgufMetadata, arch: str, path: Path) -> dict[str, object] | None:
    kind = metadata.get(f"{arch}.rope.scaling.type", "none")
    scaling: dict[str, object] = {}
    for suffix, name in _ROPE_NUMBERS.items():
        _copy(metadata, f"{arch}.{suffix}", name, scaling, _positive_number, path)
    original = f"{arch}.rope.scaling.original_context_length"
    _copy(metadata, original, "original_max_position_embeddings", scaling, _positive_integer, path)
    if kind == "none" and "factor" not in scaling:
        return None
    return {"rope_type": "linear" if kind == "none" else kind, **scaling}


def _no_extras(
    metadata: GgufMetadata, tensors: Mapping[str, TensorInfo], config: dict[str, object], path: Path
) -> None:
    """A family whose configuration is the common keys alone."""


def _llama(metadata: GgufMetadata, tensors: Mapping[str, TensorInfo], config: dict[str, object], path: Path) -> None:
    config["hidden_act"] = "silu"
    config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    config["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors


def _qwen(metadata: GgufMetadata, tensors: Mapping[str, TensorInfo], config: dict[str, object], path: Path) -> None:
    config["hidden_act"] = "silu"


def _gemma3(metadata: GgufMetadata, tensors: Mapping[str, TensorInfo], config: dict[str, object], path: Path) -> None:
    """The format has no key for the local rope base, the layer pattern and the query scale: the family's constants."""
    config["hidden_activation"] = "gelu_pytorch_tanh"
    config.setdefault("rope_local_base_freq", 10000.0)
    config.setdefault("attn_logit_softcapping", None)
    config.setdefault("final_logit_softcapping", None)
    layers, heads, hidden, head_dim = (
        config.get(name) for name in ("num_hidden_layers", "num_attention_heads", "hidden_size", "head_dim")
    )
    given = metadata.get("gemma3.attention.sliding_window_pattern", _GEMMA3_PATTERN)
    # Converters leave the window out where every layer sees everything.
    given = given if "sliding_window" in config else 1
    if isinstance(layers, int):
        local = _per_layer(given, layers, _GEMMA3_PATTERN)
        config["layer_types"] = ["sliding_attention" if item else "full_attention" for item in local]
    config["sliding_window_pattern"] = given if type(given) is int else _GEMMA3_PATTERN
    # The 27B form (62 layers) scales queries by hidden_size / heads; every other size by head_dim.
    if layers == 62 and isinstance(hidden, int) and isinstance(heads, int):
        head_dim = hidden // heads
    config["query_pre_attn_scalar"] = head_dim


def _per_layer(pattern: object, num_layers: int, default: int) -> list[bool]:
    """Whether each layer is of the lesser kind: every n-th is not, or the file says it layer by layer."""
    num_layers = min(num_layers, _MAX_LAYERS)
    if isinstance(pattern, tuple) and len(pattern) >= num_layers:
        return [bool(item) for item in pattern[:num_layers]]
    every = pattern if type(pattern) is int and pattern > 0 else default
    return [(index + 1) % every != 0 for index in range(num_layers)]


def _qwen35(metadata: GgufMetadata, tensors: Mapping[str, TensorInfo], config: dict[str, object], path: Path) -> None:
    arch = architecture(metadata, path)
    config["hidden_act"] = "silu"
    inner, values = metadata.get(f"{arch}.ssm.inner_size"), config.get("linear_num_value_heads")
    if isinstance(inner, int) and isinstance(values, int):
        config["linear_value_head_dim"] = inner // values
    rotary, head = metadata.get(f"{arch}.rope.dimension_count"), config.get("head_dim")
    if isinstance(rotary, int) and isinstance(head, int):
        config["partial_rotary_factor"] = rotary / head
    sections = metadata.get(f"{arch}.rope.dimension_sections")
    if isinstance(sections, tuple):
        config["mrope_section"] = list(sections[:3])
    # block_count includes the multi-token-prediction blocks, which follow the model's own layers.
    layers, extra = config.get("num_hidden_layers"), metadata.get(f"{arch}.nextn_predict_layers", 0)
    if not isinstance(layers, int):
        return
    if isinstance(extra, int) and 0 < extra < layers:
        layers -= extra
        config["num_hidden_layers"] = layers
        config["mtp_num_hidden_layers"] = extra
    pattern = metadata.get(f"{arch}.attention.recurrent_layers", config.get("full_attention_interval"))
    linear = _per_layer(pattern, layers, _QWEN35_INTERVAL)
    config["layer_types"] = ["linear_attention" if item else "full_attention" for item in linear]


_Family = Callable[[GgufMetadata, Mapping[str, TensorInfo], dict[str, object], Path], None]
_FAMILIES: Final[dict[str, _Family]] = {
    "llama": _llama,
    "qwen2": _qwen,
    "qwen3": _qwen,
    "qwen2moe": _qwen,
    "qwen3moe": _qwen,
    "qwen35": _qwen35,
    "qwen35moe": _qwen35,
    "gemma3": _gemma3,
}


def _copy(
    metadata: GgufMetadata,
    key: str,
    name: str,
    config: dict[str, object],
    check: Callable[[object, str, Path], object],
    path: Path,
) -> None:
    value = metadata.get(key)
    if value is not None and not (value == 0 and name in _ZERO_MEANS_ABSENT):
        config[name] = check(value, key, path)


def _positive_integer(value: object, key: str, path: Path) -> object:
    """An integer in [1, 2^31), or a list of integers in [0, 2^31) where the file gives one per layer."""
    if type(value) is int and 0 < value < _LIMIT:
        return value
    if isinstance(value, tuple) and value and all(type(item) is int and 0 <= item < _LIMIT for item in value):
        return list(value)
    shown = repr(value)[:100]
    raise CheckpointError(f"{path}: {key} is {shown}, not a positive integer below 2^31. Convert the model again.")


def _positive_number(value: object, key: str, path: Path) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
        return _shortest_decimal(float(value))
    raise CheckpointError(
        f"{path}: {key} is {repr(value)[:100]}, not a finite positive number. Convert the model again."
    )


def _shortest_decimal(value: float) -> float:
    """The shortest decimal with the same single-precision value; ``value`` itself when it is not single precision."""
    if value > _ALMOST_SINGLE_MAX or struct.unpack("<f", single := struct.pack("<f", value))[0] != value:
        return value
    candidates = (float(f"{value:.{digits}g}") for digits in range(1, 18))
    return next(candidate for candidate in candidates if struct.pack("<f", candidate) == single)
