"""An undeclared capability is refused by name, before the engine sees the request."""

from __future__ import annotations

from typing import Any

from pocketllm.errors import UnsupportedFeatureError
from pocketllm.fields.requests import check_request
from pocketllm.sampling_params import SamplingParams
from pocketllm.testing.rig import Rig
from pocketllm.testing.rules import broken
from pocketllm.types import GenerationRequest


def refuses(rig: Rig, rule: str, param: str, value: Any) -> None:
    """Core's check of this engine's capabilities refuses ``param = value`` by name and lets the plain request pass."""
    fixed = rig.capabilities
    plain: dict[str, Any] = {}
    if not fixed.per_request_sampling:
        plain = {"temperature": fixed.temperature, "top_p": fixed.top_p, "seed": fixed.seed}
    extra = {"logprobs": True} if param == "top_logprobs" else {}
    check_request(GenerationRequest(prompt="x", sampling_params=SamplingParams(**plain)), fixed)
    asked = _asking(param, value, {**plain, **extra})
    try:
        check_request(asked, fixed)
    except UnsupportedFeatureError as refusal:
        if refusal.param != param:
            raise broken(rule, f"{param} = {value!r} is refused as {refusal.param!r}") from refusal
    else:
        raise broken(rule, f"{param} = {value!r} is not declared and is not refused")


def _asking(param: str, value: Any, sampling: dict[str, Any]) -> GenerationRequest:
    """A request with this one value, wherever a request keeps it."""
    if param in SamplingParams.__struct_fields__:
        return GenerationRequest(prompt="x", sampling_params=SamplingParams(**{**sampling, param: value}))
    params = SamplingParams(**sampling)
    if param in GenerationRequest.__struct_fields__:
        return GenerationRequest(prompt="x", sampling_params=params, **{param: value})
    return GenerationRequest(prompt="x", sampling_params=params, metadata={param: value})
