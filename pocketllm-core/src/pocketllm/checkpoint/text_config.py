"""The language model's part of a ``config.json``, whether the model stands alone or inside a multimodal wrapper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pocketllm.errors import CheckpointError

# What a wrapper says once for all its parts, unless the text part says otherwise.
_SHARED: Final = (
    "tie_word_embeddings",
    "quantization_config",
    "eos_token_id",
    "bos_token_id",
    "pad_token_id",
    "dtype",
    "torch_dtype",
)
# Releases leave out of ``text_config`` what equals the family's own defaults.
_DEFAULTS: Final[dict[str, dict[str, object]]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
}
# Written by some releases under other names, which give way to the usual ones.
_ROPE_DEFAULTS: Final[dict[str, dict[str, object]]] = {
    "gemma3_text": {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0},
}


def text_part(config: Mapping[str, object], where: str) -> dict[str, object]:
    """The text model's fields at the root.

    Without a ``text_config`` that is ``config`` itself. ``model_type`` is the text part's own (``qwen3_5_text``); where
    the wrapper leaves it out, the wrapper's with ``_text`` behind it, as transformers names them.

    Args:
        where: the file, for the error message.

    Raises:
        CheckpointError: ``text_config`` is not an object.
    """
    nested = config.get("text_config")
    if nested is None:
        return dict(config)
    if not isinstance(nested, Mapping):
        raise CheckpointError(f"{where}: text_config is a {type(nested).__name__} where an object belongs.")
    given = {name: value for name, value in nested.items() if value is not None}
    if "model_type" not in given and isinstance(wrapper := config.get("model_type"), str):
        given["model_type"] = f"{wrapper}_text"
    family = str(given.get("model_type"))
    shared = {name: config[name] for name in _SHARED if config.get(name) is not None}
    rope = {} if "rope_parameters" in given else _ROPE_DEFAULTS.get(family, {})
    return {**nested, **_DEFAULTS.get(family, {}), **rope, **shared, **given}
