"""Environment variables that set engine arguments, and how their text becomes values.

For every field ``POCKETLLM_<FIELD>`` comes first; the older names of the API guide follow. The first one found wins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pocketllm.errors import ConfigurationError

_OLDER_NAMES: dict[str, tuple[str, ...]] = {
    "model": ("CKPT_PATH",),
    "backend": (),
    "tokenizer_path": ("TOKENIZER_PATH",),
    "config_path": ("CONFIG_PATH", "CONFIG"),
    "model_format": ("CKPT_FORMAT",),
    "tensor_parallel_size": ("TENSOR_PARALLEL_SIZE", "TP_WORLD"),
    "tensor_parallel_rank": ("TENSOR_PARALLEL_RANK", "TP_RANK"),
    "device": ("DEVICE",),
    "device_ids": (),
    "max_model_len": ("MAX_MODEL_LEN", "DEEPSEEK_MAX_MODEL_LEN"),
    "dtype": ("DTYPE",),
    "kv_cache_dtype": ("POCKETLLM_QWEN_KV_CACHE_DTYPE", "KV_CACHE_DTYPE"),
    "prefill_chunk_tokens": ("PREFILL_CHUNK_TOKENS", "POCKETLLM_CPP_PREFILL_CHUNK"),
    "enable_prefix_caching": ("ENABLE_PREFIX_CACHING",),
    "attention_window": ("QWEN_ATTENTION_WINDOW",),
    "attention_sink_tokens": ("QWEN_ATTENTION_SINK_TOKENS",),
    "speculative_method": ("SPECULATIVE_METHOD",),
    "speculative_tokens": ("SPECULATIVE_TOKENS",),
    "max_batch_size": ("MAX_BATCH_SIZE", "DEEPSEEK_SERVING_MAX_RUNNING_REQUESTS"),
    "enable_batching": (),
    "backend_options": (),
    "placement": (),
    "max_num_requests": (),
}

ENGINE_ENVIRONMENT: dict[str, tuple[str, ...]] = {
    field: (f"POCKETLLM_{field.upper()}", *older) for field, older in _OLDER_NAMES.items()
}
"""Field of :class:`~pocketllm.engine_args.EngineArgs` -> its variables, first found wins."""

_INTEGERS = frozenset(
    {
        "tensor_parallel_size",
        "tensor_parallel_rank",
        "max_model_len",
        "prefill_chunk_tokens",
        "attention_window",
        "attention_sink_tokens",
        "speculative_tokens",
        "max_batch_size",
        "max_num_requests",
    }
)
_BOOLEANS = frozenset({"enable_prefix_caching", "enable_batching"})
_FALSE_WORDS = frozenset({"", "0", "false", "no", "off"})
_TRUE_WORDS = frozenset({"1", "true", "yes", "on"})


def read_engine_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Values of the fields that ``environ`` sets.

    An empty variable is as good as unset, save for booleans, where empty is a word for false.

    Raises:
        ConfigurationError: a variable's text is not a value of its field; the message names the variable.
    """
    values: dict[str, Any] = {}
    for field, names in ENGINE_ENVIRONMENT.items():
        for name in names:
            text = environ.get(name)
            if text is not None and (text.strip() or field in _BOOLEANS):
                values[field] = _parse(field, name, text.strip())
                break
    return values


def _parse(field: str, variable: str, text: str) -> Any:
    if field in _INTEGERS:
        try:
            return int(text)
        except ValueError:
            raise ConfigurationError(
                f"The environment variable {variable} = {text!r} is not a whole number.", param=field
            ) from None
    if field in _BOOLEANS:
        word = text.lower()
        if word in _FALSE_WORDS or word in _TRUE_WORDS:
            return word in _TRUE_WORDS
        raise ConfigurationError(
            f"The environment variable {variable} = {text!r} is neither true nor false: write 1 or 0.", param=field
        )
    if field == "backend_options":
        try:
            options = json.loads(text)
        except ValueError:
            options = None
        if not isinstance(options, dict):
            raise ConfigurationError(
                f'The environment variable {variable} is not a JSON object: write it like {{"num_threads": 4}}.',
                param=field,
            )
        return options
    return text
