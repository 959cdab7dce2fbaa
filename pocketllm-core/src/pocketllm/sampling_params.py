"""What a caller may ask of sampling, with its bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from pocketllm.errors import ConfigurationError

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_STOPS = 64
MAX_STOP_CHARS = 4096
# A temperature this small is greedy: dividing logits by it would only add rounding noise to an argmax.
GREEDY_TEMPERATURE = 1e-5


# A float object of its own, so that the default can be told from an explicit 0.0 by identity. msgspec hands the very
# object out and encodes it as any other float; a decoded request has left the question behind (see fields/requests.py).
DEFAULT_TEMPERATURE = float("0")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling, limits and reporting for one request. Values are checked on construction.

    Defaults are deterministic: temperature 0, no truncation, no penalties, no cap on tokens (``max_tokens=None`` runs
    until an end token or the end of the context).

    Raises:
        ConfigurationError: a value is out of bounds; ``param`` names the field.
    """

    max_tokens: int | None = None
    temperature: float = DEFAULT_TEMPERATURE
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    n: int = 1
    logprobs: bool = False
    top_logprobs: int | None = None
    prompt_logprobs: bool = False
    response_format: dict[str, Any] | None = None
    extra: dict[str, Any] = {}

    def __post_init__(self) -> None:
        force_setattr(self, "stop", _stop_strings(self.stop))
        force_setattr(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        force_setattr(self, "logit_bias", _logit_bias(self.logit_bias))
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1, None)
        _real("temperature", self.temperature, 0.0, None)
        if self.top_p is not None:
            _real("top_p", self.top_p, 0.0, 1.0, open_low=True)
        if self.top_k is not None:
            _whole("top_k", self.top_k, 1, None)
        if self.min_p is not None:
            _real("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _whole("seed", self.seed, -(2**63), 2**64 - 1)
        # Logits are divided or multiplied by it: beyond these bounds they overflow.
        _real("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _whole("min_tokens", self.min_tokens, 0, None)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ConfigurationError(
                f"min_tokens = {self.min_tokens} is above max_tokens = {self.max_tokens}: lower min_tokens or raise "
                "max_tokens.",
                param="min_tokens",
            )
        _whole("n", self.n, 1, MAX_CHOICES)
        for name in ("ignore_eos", "logprobs", "prompt_logprobs"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"{name} = {getattr(self, name)!r} is not true or false.", param=name)
        if self.top_logprobs is not None:
            _whole("top_logprobs", self.top_logprobs, 0, MAX_TOP_LOGPROBS)
            if self.top_logprobs > 0 and not self.logprobs:
                raise ConfigurationError(
                    f"top_logprobs = {self.top_logprobs} needs logprobs: there is no ranking to take alternatives "
                    "from. Set logprobs to true.",
                    param="top_logprobs",
                )

    @property
    def temperature_given(self) -> bool:
        """False when the temperature is the default: an engine that fixes another one may then use its own."""
        return self.temperature is not DEFAULT_TEMPERATURE

    @property
    def greedy(self) -> bool:
        """True when the sampler takes the argmax and reads no random number."""
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def num_top_logprobs(self) -> int:
        """Alternatives to rank per position; 0 when log probabilities are not asked for."""
        return self.top_logprobs or 0

    def token_budget(self, available: int) -> int:
        """Tokens this request may generate when ``available`` positions are left in the context."""
        return self.max_tokens if self.max_tokens is not None else max(1, available)

    @classmethod
    def from_openai(cls, body: Mapping[str, Any]) -> SamplingParams:
        """Build from an OpenAI-shaped mapping; null is absent, ``max_completion_tokens`` wins over ``max_tokens``.

        Keys that are not sampling fields go to ``extra``. A completions body's ``logprobs`` count must be converted
        before (see :mod:`pocketllm.protocol`). ``body`` is not mutated.
        """
        values = {key: value for key, value in body.items() if value is not None}
        if "max_completion_tokens" in values:
            values["max_tokens"] = values.pop("max_completion_tokens")
        known = {field for field in cls.__struct_fields__ if field != "extra"}
        extra = {key: value for key, value in values.items() if key not in known}
        return cls(**{key: value for key, value in values.items() if key in known}, extra=extra)


def _whole(name: str, value: object, low: int | None, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{name} = {value!r} is not a whole number.", param=name)
    if (low is not None and value < low) or (high is not None and value > high):
        raise ConfigurationError(f"{name} = {value} is out of range: give {_range(low, high)}.", param=name)


def _real(name: str, value: object, low: float, high: float | None, *, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigurationError(f"{name} = {value!r} is not a finite number.", param=name)
    if value < low or (open_low and value == low) or (high is not None and value > high):
        span = f"above {low:g}" if open_low else f"at least {low:g}"
        if high is not None:
            span += f" and at most {high:g}"
        raise ConfigurationError(f"{name} = {value:g} is out of range: give a number {span}.", param=name)


def _range(low: int | None, high: int | None) -> str:
    return f"a whole number from {low} to {high}" if high is not None else f"a whole number of at least {low}"


def _stop_strings(stop: object) -> tuple[str, ...]:
    if stop is None:
        return ()
    items = (stop,) if isinstance(stop, str) else stop
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ConfigurationError(f"stop = {stop!r} is neither a string nor a list of strings.", param="stop")
    if any(not item for item in items):
        raise ConfigurationError("stop has an empty string, which would match everywhere: remove it.", param="stop")
    if len(items) > MAX_STOPS or sum(map(len, items)) > MAX_STOP_CHARS:
        raise ConfigurationError(
            f"stop has {len(items)} strings with {sum(map(len, items))} characters: at most {MAX_STOPS} strings and "
            f"{MAX_STOP_CHARS} characters in all are watched for.",
            param="stop",
        )
    return tuple(items)


def _token_ids(name: str, ids: object) -> tuple[int, ...]:
    if ids is None:
        return ()
    if not isinstance(ids, list | tuple):
        raise ConfigurationError(f"{name} = {ids!r} is not a list of token ids.", param=name)
    for item in ids:
        _whole(name, item, 0, 2**31 - 1)
    return tuple(ids)


def _logit_bias(bias: object) -> dict[int, float]:
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise ConfigurationError(f"logit_bias = {bias!r} is not a mapping of token ids to numbers.", param="logit_bias")
    checked: dict[int, float] = {}
    for key, value in bias.items():
        try:
            token = int(key)
        except (TypeError, ValueError):
            raise ConfigurationError(
                f"logit_bias has the key {key!r}, which is not a token id.", param="logit_bias"
            ) from None
        _whole("logit_bias", token, 0, 2**31 - 1)
        _real("logit_bias", value, -100.0, 100.0)
        checked[token] = float(value)
    return checked
