"""What an engine has to declare for which value of a request: the one table that every check follows.

The field table (:mod:`pocketllm.fields.table`) takes a row's policy from here, :mod:`pocketllm.fields.requests` judges
finished requests by it, and the conformance kit asks each engine for each example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from pocketllm.prompt_spec import PromptSpec
from pocketllm.types import GenerationRequest

NEVER = "nothing declares this"
"""A capability that no engine and no server declares: every value that is not neutral is refused."""

Read = Callable[[GenerationRequest, PromptSpec], Any]
"""Where a finished request holds the value of a field."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """Some values of a field need a capability.

    Values in ``neutral`` ask for what would happen anyway. ``instead`` says what happens without the capability,
    ``remedy`` what to send. ``example`` is a value that needs it.
    """

    field: str
    capability: str
    """A field of :class:`pocketllm.Capabilities`, or :data:`NEVER`."""
    neutral: tuple[Any, ...]
    example: Any
    instead: str = ""
    remedy: str = ""
    read: Read | None = None
    """None: the field acts through another one, and only a request body holds it."""


class InForce(msgspec.Struct, frozen=True, kw_only=True):
    """A sampling value that an engine without ``capability`` fixes: a request may only repeat it.

    The value in force is the field of :class:`pocketllm.Capabilities` of the same name.
    """

    field: str
    capability: str
    example: Any
    read: Read
    """None when the request leaves the choice to the engine."""


def _sampling(name: str) -> Read:
    return lambda request, spec: getattr(request.sampling_params, name)


def _prompt(name: str) -> Read:
    return lambda request, spec: getattr(spec, name)


def _own(name: str) -> Read:
    return lambda request, spec: getattr(request, name)


def _given_temperature(request: GenerationRequest, spec: PromptSpec) -> float | None:
    params = request.sampling_params
    return params.temperature if params.temperature_given else None


def _format(request: GenerationRequest, spec: PromptSpec) -> dict[str, Any] | None:
    given = request.sampling_params.response_format
    return given if given is not None and given.get("type", "text") != "text" else None


_PENALTY = "the sampler has no such term, so the request would be generated as if the penalty were absent"
_UNRANKED = "the engine ranks no tokens"
_UNCONSTRAINED = "the engine cannot constrain its output"

NEEDS: tuple[Need, ...] = (
    Need(field="task", capability=NEVER, neutral=("generate",), example="embed", read=_own("task")),
    Need(
        field="logprobs", capability="supports_logprobs", neutral=(False,), example=True, read=_sampling("logprobs"),
        instead=_UNRANKED, remedy='Send "logprobs" as false',
    ),
    Need(
        field="prompt_logprobs", capability="supports_prompt_logprobs", neutral=(False,), example=True,
        read=_sampling("prompt_logprobs"),
    ),
    Need(
        field="echo", capability="supports_prompt_logprobs", neutral=(False,), example=True,
        instead="the answer holds the generated continuation alone, never the prompt",
        remedy='Send "echo" as false and put the prompt in front yourself',
    ),
    Need(
        field="min_p", capability="supports_min_p", neutral=(0,), example=0.5, read=_sampling("min_p"),
        instead="the sampler has no min-p cut", remedy='Send "min_p" as 0',
    ),
    Need(
        field="repetition_penalty", capability="supports_penalties", neutral=(1,), example=1.5,
        read=_sampling("repetition_penalty"), instead=_PENALTY, remedy='Send "repetition_penalty" as 1',
    ),
    Need(
        field="frequency_penalty", capability="supports_penalties", neutral=(0,), example=0.5,
        read=_sampling("frequency_penalty"), instead=_PENALTY, remedy='Send "frequency_penalty" as 0',
    ),
    Need(
        field="presence_penalty", capability="supports_penalties", neutral=(0,), example=0.5,
        read=_sampling("presence_penalty"), instead=_PENALTY, remedy='Send "presence_penalty" as 0',
    ),
    Need(
        field="logit_bias", capability="supports_logit_bias", neutral=({},), example={3: 5.0},
        read=_sampling("logit_bias"),
        instead="no per-token bias is applied, so biased tokens would be sampled at their unmodified probability",
        remedy='Remove "logit_bias" or send an empty object',
    ),
    Need(
        field="min_tokens", capability="supports_min_tokens", neutral=(0,), example=2, read=_sampling("min_tokens"),
        instead="an end token ends the answer whenever it comes", remedy='Send "min_tokens" as 0',
    ),
    Need(
        field="ignore_eos", capability="supports_ignore_eos", neutral=(False,), example=True,
        read=_sampling("ignore_eos"), instead="an end token always ends the answer",
        remedy='Send "ignore_eos" as false',
    ),
    Need(
        field="stop_token_ids", capability="supports_stop_token_ids", neutral=([],), example=[3],
        read=lambda request, spec: list(request.sampling_params.stop_token_ids),
        instead="only the checkpoint's own end tokens are watched for", remedy='Use "stop" with the text instead',
    ),
    Need(
        field="response_format", capability="supports_structured_outputs", neutral=({"type": "text"},),
        example={"type": "json_object"}, read=_format, instead=_UNCONSTRAINED,
        remedy='Send {"type": "text"} and ask for the format in the prompt',
    ),
    Need(
        field="structured_outputs", capability="supports_structured_outputs", neutral=({},), example={"regex": "a+"},
        read=_own("constraint"), instead=_UNCONSTRAINED,
        remedy='Remove "structured_outputs" and ask for the form in the prompt',
    ),
    Need(
        field="priority", capability="supports_priority", neutral=(0,), example=1, read=_own("priority"),
        instead="the engine takes requests in the order of their arrival", remedy='Send "priority" as 0',
    ),
    Need(
        field="suffix", capability="supports_suffix", neutral=("",), example="end", read=_prompt("suffix"),
        instead="the completion is returned on its own, with no suffix after it", remedy='Remove "suffix"',
    ),
    Need(
        field="tool_choice", capability="supports_tool_choice", neutral=("auto",), example="none",
        read=_prompt("tool_choice"),
        instead="tool definitions reach the chat template, but the model is not held to a choice among them",
        remedy='Send "tool_choice" as "auto"',
    ),
    Need(
        field="tool_choice", capability="supports_structured_outputs", neutral=("auto", "none"), example="required",
        read=_prompt("tool_choice"),
        instead="only constrained decoding holds a model to a call, and the engine does not declare it",
        remedy='Send "tool_choice" as "auto" or "none"',
    ),
    Need(
        field="parallel_tool_calls", capability="supports_structured_outputs", neutral=(True,), example=False,
        read=_prompt("parallel_tool_calls"), instead="the number of tool calls that the model writes is not limited",
        remedy='Send "parallel_tool_calls" as true',
    ),
    Need(field="adapter", capability=NEVER, neutral=(), example="a", read=_own("adapter")),
)  # fmt: skip
"""In the order in which a finished request is judged. None asks for nothing, whatever the field."""

STREAM_NEEDS: tuple[Need, ...] = (
    Need(
        field="logprobs", capability="supports_streamed_logprobs", neutral=(False,), example=True,
        read=_sampling("logprobs"),
        instead="a streamed chunk carries the text of its token with no ranking beside it",
        remedy='Send "stream" as false',
    ),
    *(
        Need(
            field=f"stream_options.{name}", capability="supports_streamed_usage", neutral=(False,), example=True,
            instead="a stream is delta chunks followed by [DONE], and none of them carries usage",
            remedy="Leave it out, or ask for a response that is not streamed, which reports usage already",
        )
        for name in ("include_usage", "continuous_usage_stats")
    ),
)  # fmt: skip
"""What an answer needs besides when it is streamed."""

IN_FORCE: tuple[InForce, ...] = (
    InForce(field="temperature", capability="per_request_sampling", example=0.875, read=_given_temperature),
    InForce(field="top_p", capability="per_request_sampling", example=0.875, read=_sampling("top_p")),
    InForce(field="seed", capability="per_request_sampling", example=123456, read=_sampling("seed")),
    # Zero and the whole vocabulary both mean that top-k is off.
    InForce(
        field="top_k", capability="per_request_top_k", example=7,
        read=lambda request, spec: request.sampling_params.top_k or None,
    ),
)  # fmt: skip


def needs_of(field: str) -> tuple[Need, ...]:
    """What the values of one field need; () when every engine serves them all."""
    return tuple(need for need in NEEDS if need.field == field)
