"""Which token ids end a generation: the first source in the guide's order that names any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from pocketllm.errors import CheckpointError, ConfigurationError

EosSource = Literal["override", "generation_config", "config", "tokenizer", "none"]


def resolve_eos(
    override: object,
    generation_config: Mapping[str, object],
    config: Mapping[str, object],
    tokenizer_ids: Callable[[], tuple[int, ...]],
) -> tuple[tuple[int, ...], EosSource]:
    """The ids and where they came from: override, generation_config.json, config.json, tokenizer, or ``((), "none")``.

    generation_config.json goes before the tokenizer since chat checkpoints commonly stop on a turn-end token.

    Args:
        override: ``backend_options["eos_token_id"]``: None, an id, or a list of ids.
        generation_config, config: the files' contents; ``text_config`` counts as part of ``config``.
        tokenizer_ids: asked last.

    Raises:
        ConfigurationError: the override is anything else (a bool included): it is rejected rather than guessed.
        CheckpointError: a file names an id that is not one.
    """
    if override is not None:
        ids = _as_ids(override)
        if not ids:
            raise ConfigurationError(
                f"backend_options eos_token_id is {override!r}; give one token id or a list of them, all >= 0.",
                param="backend_options",
            )
        return ids, "override"
    ids = _from_file(generation_config, "generation_config.json")
    if ids:
        return ids, "generation_config"
    ids = _from_file(config, "config.json")
    text_config = config.get("text_config")
    if not ids and isinstance(text_config, Mapping):
        ids = _from_file(text_config, "text_config of config.json")
    if ids:
        return ids, "config"
    ids = tokenizer_ids()
    return (ids, "tokenizer") if ids else ((), "none")


def _from_file(values: Mapping[str, object], where: str) -> tuple[int, ...]:
    value = values.get("eos_token_id")
    if value is None or value == []:
        return ()
    ids = _as_ids(value)
    if not ids:
        raise CheckpointError(f"eos_token_id of {where} is {value!r}, not a token id or a list of them.")
    return ids


def _as_ids(value: object) -> tuple[int, ...]:
    """Each id once, in order; empty when the value is neither an id nor a list of ids."""
    items = value if isinstance(value, list | tuple) else [value]
    if not all(type(item) is int and item >= 0 for item in items):
        return ()
    return tuple(dict.fromkeys(items))
