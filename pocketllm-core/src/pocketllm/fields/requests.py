"""The gate every request passes before its engine sees it: what is not declared is refused by name."""

from __future__ import annotations

from pocketllm.errors import UnsupportedFeatureError
from pocketllm.sampling_params import GREEDY_TEMPERATURE, SamplingParams
from pocketllm.types import Capabilities, GenerationRequest


def check_request(request: GenerationRequest, capabilities: Capabilities) -> None:
    """Refuse the first value of ``request`` that would change the output and that the engine does not act on.

    Neutral values (a penalty of 0, an empty bias, ``n`` of 1) always pass. Where the engine fixes its sampling, a value
    equal to the one in force passes too.

    Raises:
        UnsupportedFeatureError: ``param`` names the field.
    """
    params = request.sampling_params
    has = capabilities
    _needs(request.task != "generate", False, "task", request.task, has)
    _needs(params.logprobs, has.supports_logprobs, "logprobs", params.logprobs, has)
    _needs(params.prompt_logprobs, has.supports_prompt_logprobs, "prompt_logprobs", params.prompt_logprobs, has)
    _needs(bool(params.min_p), has.supports_min_p, "min_p", params.min_p, has)
    for name, neutral in (("repetition_penalty", 1.0), ("frequency_penalty", 0.0), ("presence_penalty", 0.0)):
        value = getattr(params, name)
        _needs(value != neutral, has.supports_penalties, name, value, has)
    _needs(bool(params.logit_bias), has.supports_logit_bias, "logit_bias", params.logit_bias, has)
    _needs(params.min_tokens > 0, has.supports_min_tokens, "min_tokens", params.min_tokens, has)
    _needs(params.ignore_eos, has.supports_ignore_eos, "ignore_eos", params.ignore_eos, has)
    stop_ids = params.stop_token_ids
    _needs(bool(stop_ids), has.supports_stop_token_ids, "stop_token_ids", list(stop_ids), has)
    wants_format = params.response_format is not None and params.response_format.get("type", "text") != "text"
    constrained = has.supports_structured_outputs
    _needs(wants_format, constrained, "response_format", params.response_format, has)
    _needs(request.constraint is not None, constrained, "structured_outputs", request.constraint, has)
    _needs(request.priority != 0, has.supports_priority, "priority", request.priority, has)
    suffix = request.metadata.get("suffix")
    _needs(bool(suffix), has.supports_suffix, "suffix", suffix, has)
    choice = request.metadata.get("tool_choice", "auto")
    _needs(choice != "auto", has.supports_tool_choice, "tool_choice", choice, has)
    _needs(choice not in ("auto", "none"), constrained, "tool_choice", choice, has)
    parallel = request.metadata.get("parallel_tool_calls", True)
    _needs(not parallel, constrained, "parallel_tool_calls", parallel, has)
    _needs(request.adapter is not None, False, "adapter", request.adapter, has)
    _check_sampling(request, capabilities)


def check_streaming(request: GenerationRequest, capabilities: Capabilities) -> None:
    """Refuse what a stream cannot carry, though a whole answer can.

    Raises:
        UnsupportedFeatureError: ``param`` names the field.
    """
    _needs(True, capabilities.supports_streaming, "stream", True, capabilities)
    wanted = request.sampling_params.logprobs
    _needs(wanted, capabilities.supports_streamed_logprobs, "logprobs", wanted, capabilities)


def effective_temperature(params: SamplingParams, capabilities: Capabilities) -> float:
    """The temperature a request runs at: its own, or what the engine has in force when the caller gave none."""
    if not params.temperature_given and not capabilities.per_request_sampling:
        return capabilities.temperature
    return float(params.temperature)


def _check_sampling(request: GenerationRequest, capabilities: Capabilities) -> None:
    params = request.sampling_params
    if not capabilities.per_request_sampling:
        fixed: tuple[tuple[str, object, object], ...] = (
            ("temperature", params.temperature if params.temperature_given else None, capabilities.temperature),
            ("top_p", params.top_p, capabilities.top_p),
            ("seed", params.seed, capabilities.seed),
        )
        for name, value, in_force in fixed:
            if value is not None and value != in_force:
                raise _fixed(name, value, in_force, capabilities.name)
        if params.n > 1 and effective_temperature(params, capabilities) > GREEDY_TEMPERATURE:
            raise UnsupportedFeatureError(
                f'"n" = {params.n} is not supported by this server: the engine of backend {capabilities.name!r} fixes '
                "its sampling, so every choice would be the same text. Send n as 1.",
                param="n",
            )
    # Zero and the whole vocabulary both mean that top-k is off.
    off = (None, 0)
    if not capabilities.per_request_top_k and params.top_k not in off and params.top_k != capabilities.top_k:
        raise _fixed("top_k", params.top_k, capabilities.top_k, capabilities.name)


def _needs(wanted: bool, declared: bool, field: str, value: object, capabilities: Capabilities) -> None:
    if wanted and not declared:
        raise UnsupportedFeatureError(
            f'"{field}" = {_short(value)} is not supported by this server: backend {capabilities.name!r} does not '
            f'declare it. Remove "{field}", or use a backend that lists it under capabilities.',
            param=field,
        )


def _fixed(name: str, value: object, in_force: object, backend: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f'"{name}" = {value} is not supported by this server: backend {backend!r} uses {name} = {in_force} for every '
        f'request. Send "{name}" as {in_force} or leave it out.',
        param=name,
    )


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
