"""The fields that bodies of every endpoint share: sampling, identity, scheduling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pocketllm.errors import ConfigurationError, shown
from pocketllm.fields.requests import fixed_value
from pocketllm.prompt_spec import PromptSpec
from pocketllm.protocol.output_constraint import checked_response_format, constraint_of
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Capabilities, GenerationRequest

MAX_SALT_CHARS = 1024
MAX_TIMEOUT_S = 7 * 24 * 3600

_SAMPLING_FIELDS = tuple(name for name in SamplingParams.__struct_fields__ if name not in ("extra", "prompt_logprobs"))


def present(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were set: null is absent."""
    return {name: value for name, value in body.items() if value is not None}


def truth_of(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} = {shown(value)} is not true or false.", param=name)
    return value


def sampling_of(body: Mapping[str, Any], capabilities: Capabilities | None) -> SamplingParams:
    """The sampling fields of a body, as the sampler means them."""
    names = (*_SAMPLING_FIELDS, "max_completion_tokens")
    values = {name: body[name] for name in names if name in body}
    if "stop" in values:
        stop = values["stop"]
        # Some clients pad the list with empty strings, which match nothing.
        values["stop"] = [item for item in (stop if isinstance(stop, list | tuple) else [stop]) if item != ""]
    if "response_format" in values:
        values["response_format"] = checked_response_format(values["response_format"])
    top_k = values.get("top_k")
    if _is_whole(top_k) and top_k in (0, -1):  # the two ways clients say that it is off
        if capabilities is not None and not capabilities.per_request_top_k and capabilities.top_k:
            raise fixed_value("top_k", top_k, capabilities)
        del values["top_k"]
    return SamplingParams.from_openai(values)


def given_or_default(params: object) -> SamplingParams:
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise ConfigurationError(
            f"sampling_params is {type(params).__name__}: give a SamplingParams.", param="sampling_params"
        )
    return params


def build_request(
    body: Mapping[str, Any], params: SamplingParams, spec: PromptSpec, **fields: Any
) -> GenerationRequest:
    """The request around a prompt: its name, its constraint, and how it is scheduled."""
    fields["metadata"] = spec.as_metadata()
    fields["constraint"] = constraint_of(body)
    request_id = body.get("request_id")
    if request_id is not None:
        if not isinstance(request_id, str) or not 0 < len(request_id) <= 256 or not request_id.isprintable():
            raise ConfigurationError(
                f"request_id = {shown(request_id)} must be 1 to 256 printable characters.", param="request_id"
            )
        fields["request_id"] = request_id
    priority = body.get("priority", 0)
    if not _is_whole(priority) or not -(2**31) <= priority < 2**31:
        raise ConfigurationError(f"priority = {shown(priority)} is not a whole number of 32 bits.", param="priority")
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not 0 < len(salt) <= MAX_SALT_CHARS):
        raise ConfigurationError(
            f"cache_salt = {shown(salt)} must be a string of 1 to {MAX_SALT_CHARS} characters.", param="cache_salt"
        )
    return GenerationRequest(
        sampling_params=params, priority=priority, cache_salt=salt, deadline_s=_deadline_s(body), **fields
    )


def _deadline_s(body: Mapping[str, Any]) -> float | None:
    seconds = body.get("timeout")
    if seconds is None:
        return None
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not math.isfinite(seconds) or not 0 < seconds <= MAX_TIMEOUT_S:
        raise ConfigurationError(
            f"timeout = {shown(seconds)} must be a number of seconds above 0 and at most {MAX_TIMEOUT_S}.",
            param="timeout",
        )
    return float(seconds)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
