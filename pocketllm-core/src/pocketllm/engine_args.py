"""What a person may say about the engine they want: one frozen Struct, checked on construction."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from pocketllm.engine_env import read_engine_environment
from pocketllm.errors import ConfigurationError

MODEL_FORMATS = ("auto", "safetensors", "gguf")
PLACEMENTS = ("auto", "thread", "child")
CHECKPOINT_DIR_OPTION = "checkpoint_dir"
"""The one key of ``backend_options`` that core reads: another spelling of ``model``."""

_WORD = re.compile(r"[a-z0-9][a-z0-9_-]*")
_CARD = re.compile(r"(?:(?P<kind>[a-z][a-z0-9_-]*):)?(?P<index>\d+)")


class EngineArgs(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Arguments of an engine. Checked on construction; whether a backend can honour them is asked when selecting.

    Which backends and device kinds exist is not known here: they are open sets that installed distributions define.

    Raises:
        ConfigurationError: a value is malformed or contradicts another; ``param`` names the field.
    """

    model: str = ""
    """A checkpoint (folder or GGUF file), or a name that an installed plugin resolves."""
    backend: str = "auto"
    tokenizer_path: str | None = None
    config_path: str | None = None
    model_format: str = "auto"
    tensor_parallel_size: int = 1
    tensor_parallel_rank: int = 0
    device: str = "auto"
    """A kind of device, never one card; cards are chosen with ``device_ids``."""
    device_ids: tuple[int, ...] = ()
    """Card of each tensor-parallel rank; also accepted as text, as in ``"2,3"``."""
    max_model_len: int | None = None
    """Positions per sequence; None: what the checkpoint says, as far as memory allows."""
    dtype: str | None = None
    kv_cache_dtype: str = "auto"
    prefill_chunk_tokens: int = 0
    """0: the backend's default"""
    enable_prefix_caching: bool = True
    attention_window: int = 0
    """0: full attention"""
    attention_sink_tokens: int = 0
    speculative_method: str | None = None
    speculative_tokens: int = 1
    max_batch_size: int = 1
    enable_batching: bool | None = None
    """None: the backend's default"""
    backend_options: dict[str, Any] = {}
    """Options of one backend, typed by its card; ``checkpoint_dir`` is accepted for any as the model's path."""
    resolved_options: dict[str, Any] = {}
    """Backend options that flags have decided; an explicit entry of ``backend_options`` wins."""
    placement: str = "auto"
    """Where the engine runs: "thread" (this process), "child", or "auto" (the front's choice)."""
    max_num_requests: int = 1024
    """Active requests that are admitted, queued ones included; one more is refused."""

    def __post_init__(self) -> None:
        self._normalise()
        self._check_model()
        self._check_numbers()
        self._check_device()

    @property
    def checkpoint_dir(self) -> str:
        """The model as given: ``backend_options["checkpoint_dir"]`` when present, else ``model``."""
        return str(self.backend_options.get(CHECKPOINT_DIR_OPTION) or self.model)

    def batch_size(self, default: int) -> int:
        """Sequences to advance together: ``max_batch_size`` where it says more than one, 1 with batching off, else the
        backend's ``default``. (1 is the field's default and so no wish of its own.)"""
        if self.max_batch_size > 1:
            return self.max_batch_size
        return 1 if self.enable_batching is False else default

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> EngineArgs:
        """Arguments from environment variables (``pocketllm.engine_env``); an override that is not None wins.

        ``backend_options`` of both are merged, key by key.
        """
        values = read_engine_environment(os.environ if environ is None else environ)
        given = {name: value for name, value in overrides.items() if value is not None}
        if "backend_options" in values and "backend_options" in given:
            given["backend_options"] = {**values["backend_options"], **given["backend_options"]}
        return cls(**{**values, **given})

    def _normalise(self) -> None:
        for name in ("model", "tokenizer_path", "config_path"):
            value = getattr(self, name)
            if isinstance(value, os.PathLike):
                self._set(name, os.fspath(value))
            elif value is None and name == "model":  # a caller passed None through for "not given"
                self._set(name, "")
        for name in ("backend", "model_format", "kv_cache_dtype", "placement"):
            self._set(name, _text(name, getattr(self, name)).strip().lower())
        for name in ("dtype", "speculative_method"):
            value = getattr(self, name)
            self._set(name, None if value is None else _text(name, value).strip().lower() or None)
        for name in ("tokenizer_path", "config_path"):
            value = getattr(self, name)
            self._set(name, None if value is None else _text(name, value) or None)
        for name in ("backend_options", "resolved_options"):
            force_setattr(self, name, _options(name, getattr(self, name)))  # always a copy
        self._set("device", str(self.device).strip().lower())
        self._set("device_ids", _device_ids(self.device_ids))

    def _set(self, name: str, value: object) -> None:
        # A value that is the default already stays the default's own object, which the repr can then leave out.
        if type(value) is not type(getattr(self, name)) or value != getattr(self, name):
            force_setattr(self, name, value)

    def _check_model(self) -> None:
        _text("model", self.model)
        checkpoint_dir = self.backend_options.get(CHECKPOINT_DIR_OPTION)
        if isinstance(checkpoint_dir, os.PathLike):
            self.backend_options[CHECKPOINT_DIR_OPTION] = os.fspath(checkpoint_dir)
        elif checkpoint_dir is not None and not isinstance(checkpoint_dir, str):
            raise ConfigurationError(
                f"backend_options['checkpoint_dir'] = {checkpoint_dir!r} is not a path.", param="backend_options"
            )
        if not self.checkpoint_dir:
            raise ConfigurationError(
                "No model was given: set model to a checkpoint folder, a GGUF file or an installed model's name such "
                "as 'smollm2'.",
                param="model",
            )
        if not _WORD.fullmatch(self.backend):
            raise ConfigurationError(
                f"backend = {self.backend!r} is not a backend's name: give 'auto' or a name that `pocketllm plugins` "
                "lists.",
                param="backend",
            )
        for name, known in (("model_format", MODEL_FORMATS), ("placement", PLACEMENTS)):
            value = getattr(self, name)
            if value not in known:
                raise ConfigurationError(f"{name} = {value!r} is unknown: give {_alternatives(known)}.", param=name)

    def _check_device(self) -> None:
        card = _CARD.fullmatch(self.device)
        if card:
            kind = card["kind"] or "cuda"
            raise ConfigurationError(
                f"device = {self.device!r} names one card, but device is a kind: give device='{kind}' and "
                f"device_ids=({card['index']},).",
                param="device",
            )
        if not _WORD.fullmatch(self.device):
            raise ConfigurationError(
                f"device = {self.device!r} is not a kind of device: give 'auto' or one such as 'cpu' or 'cuda'.",
                param="device",
            )
        ids = self.device_ids
        if not ids:
            return
        if self.device == "cpu":
            raise ConfigurationError(
                f"device_ids = {_listed(ids)} choose cards, and device 'cpu' has none: leave out one of the two.",
                param="device_ids",
            )
        if len(set(ids)) != len(ids):
            raise ConfigurationError(
                f"device_ids = {_listed(ids)} names a card twice: each rank needs a card of its own.",
                param="device_ids",
            )
        if len(ids) < self.tensor_parallel_size:
            raise ConfigurationError(
                f"device_ids = {_listed(ids)} has {len(ids)} cards for tensor_parallel_size = "
                f"{self.tensor_parallel_size}: name one card for each rank.",
                param="device_ids",
            )

    def _check_numbers(self) -> None:
        _whole("tensor_parallel_size", self.tensor_parallel_size, 1)
        _whole("tensor_parallel_rank", self.tensor_parallel_rank, 0)
        if self.tensor_parallel_rank >= self.tensor_parallel_size:
            raise ConfigurationError(
                f"tensor_parallel_rank = {self.tensor_parallel_rank} is outside the {self.tensor_parallel_size} ranks "
                f"of tensor_parallel_size: give 0 to {self.tensor_parallel_size - 1}.",
                param="tensor_parallel_rank",
            )
        if self.max_model_len is not None:
            _whole("max_model_len", self.max_model_len, 1)
        for name in ("prefill_chunk_tokens", "attention_window", "attention_sink_tokens"):
            _whole(name, getattr(self, name), 0)
        if self.attention_sink_tokens and not self.attention_window:
            raise ConfigurationError(
                f"attention_sink_tokens = {self.attention_sink_tokens} needs an attention_window: sinks are the tokens "
                "kept outside a window. Set attention_window or leave out the sinks.",
                param="attention_sink_tokens",
            )
        for name in ("speculative_tokens", "max_batch_size", "max_num_requests"):
            _whole(name, getattr(self, name), 1)
        _truth("enable_prefix_caching", self.enable_prefix_caching)
        if self.enable_batching is not None:
            _truth("enable_batching", self.enable_batching)
        if self.enable_batching is False and self.max_batch_size > 1:
            raise ConfigurationError(
                f"max_batch_size = {self.max_batch_size} contradicts enable_batching = False: leave out one of the "
                "two.",
                param="max_batch_size",
            )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} = {value!r} is not text.", param=name)
    return value


def _truth(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} = {value!r} is not True or False.", param=name)


def _whole(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{name} = {value!r} is not a whole number.", param=name)
    if value < low:
        raise ConfigurationError(f"{name} = {value} is too small: give at least {low}.", param=name)


def _options(name: str, value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigurationError(f"{name} = {value!r} is not a mapping of option names to values.", param=name)
    return dict(value)


def _device_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    items: list[object] | tuple[object, ...]
    if isinstance(value, str):
        items = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, list | tuple):
        items = value
    else:
        items = (value,)
    ids = []
    for item in items:
        if isinstance(item, str) and re.fullmatch(r"-?\d+", item):
            item = int(item)
        if isinstance(item, bool) or not isinstance(item, int):
            raise ConfigurationError(
                f"device_ids has {item!r}, which is not the number of a card: write it like (2, 3) or '2,3'.",
                param="device_ids",
            )
        if item < 0:
            raise ConfigurationError(f"device_ids has {item}: cards are numbered from 0.", param="device_ids")
        ids.append(item)
    return tuple(ids)


def _listed(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids))


def _alternatives(words: tuple[str, ...]) -> str:
    return ", ".join(map(repr, words[:-1])) + f" or {words[-1]!r}"
