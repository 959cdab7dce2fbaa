"""The gate every request passes before its engine sees it: what is not declared is refused by name."""

from __future__ import annotations

from collections.abc import Iterable

from pocketllm.errors import UnsupportedFeatureError, shown
from pocketllm.fields.policy import IN_FORCE, NEEDS, STREAM_NEEDS, Need
from pocketllm.prompt_spec import PromptSpec
from pocketllm.sampling_params import GREEDY_TEMPERATURE, SamplingParams
from pocketllm.types import Capabilities, GenerationRequest


def check_request(request: GenerationRequest, capabilities: Capabilities) -> None:
    """Refuse the first value of ``request`` that would change the output and that the engine does not act on.

    Neutral values (a penalty of 0, an empty bias, ``n`` of 1) always pass. Where the engine fixes its sampling, a value
    equal to the one in force passes too.

    Raises:
        UnsupportedFeatureError: ``param`` names the field.
    """
    spec = PromptSpec.of(request.metadata)
    _check_needs(NEEDS, request, spec, capabilities)
    for row in IN_FORCE:
        value = row.read(request, spec)
        if value is not None and not capabilities.supports(row.capability):
            in_force = getattr(capabilities, row.field)
            if value != in_force:
                raise fixed_value(row.field, value, capabilities)
    _check_choices(request.sampling_params, capabilities)


def check_streaming(request: GenerationRequest, capabilities: Capabilities) -> None:
    """Refuse what a stream cannot carry, though a whole answer can.

    Raises:
        UnsupportedFeatureError: ``param`` names the field.
    """
    if not capabilities.supports_streaming:
        raise _undeclared("stream", True, capabilities)
    _check_needs(STREAM_NEEDS, request, PromptSpec.of(request.metadata), capabilities)


def effective_temperature(params: SamplingParams, capabilities: Capabilities) -> float:
    """The temperature a request runs at: its own, or what the engine has in force when the caller gave none."""
    if not params.temperature_given and not capabilities.per_request_sampling:
        return capabilities.temperature
    return float(params.temperature)


def fixed_value(field: str, value: object, capabilities: Capabilities) -> UnsupportedFeatureError:
    """The refusal of a sampling value that is not the one in force."""
    in_force = getattr(capabilities, field)
    return UnsupportedFeatureError(
        f'"{field}" = {value} is not supported by this server: backend {capabilities.name!r} uses {field} = {in_force} '
        f'for every request. Send "{field}" as {in_force} or leave it out.',
        param=field,
    )


def _check_needs(
    needs: Iterable[Need], request: GenerationRequest, spec: PromptSpec, capabilities: Capabilities
) -> None:
    for need in needs:
        if need.read is None:
            continue
        value = need.read(request, spec)
        asks = value is not None and value not in need.neutral
        if asks and not capabilities.supports(need.capability):
            raise _undeclared(need.field, value, capabilities)


def _check_choices(params: SamplingParams, capabilities: Capabilities) -> None:
    fixed = not capabilities.per_request_sampling
    if fixed and params.n > 1 and effective_temperature(params, capabilities) > GREEDY_TEMPERATURE:
        raise UnsupportedFeatureError(
            f'"n" = {params.n} is not supported by this server: the engine of backend {capabilities.name!r} fixes its '
            "sampling, so every choice would be the same text. Send n as 1.",
            param="n",
        )


def _undeclared(field: str, value: object, capabilities: Capabilities) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f'"{field}" = {shown(value)} is not supported by this server: backend {capabilities.name!r} does not declare '
        f'it. Remove "{field}", or use a backend that lists it under capabilities.',
        param=field,
    )
