"""Conversations: the request of a chat body, or of the arguments of ``LLM.chat``."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pocketllm.errors import ConfigurationError, shown
from pocketllm.fields import CHAT, check_fields
from pocketllm.prompt_spec import PromptSpec
from pocketllm.protocol.body_fields import build_request, given_or_default, present, sampling_of, truth_of
from pocketllm.protocol.conversation import normalize_messages
from pocketllm.protocol.output_constraint import checked_response_format
from pocketllm.protocol.tools import tool_spec
from pocketllm.sampling_params import SamplingParams
from pocketllm.text.fallback_prompt import render_fallback_prompt
from pocketllm.types import Capabilities, GenerationRequest

EFFORTS = ("minimal", "low", "medium", "high", "max", "xhigh")
THINKING_MODES = ("thinking", "chat")
TOOL_CALL_STREAMING = ("certain", "eager")

CHAT_FIELDS = (
    "reasoning", "reasoning_effort", "thinking_mode", "tools", "tool_choice", "parallel_tool_calls",
    "tool_call_streaming", "response_format", "structured_outputs", "add_generation_prompt", "continue_final_message",
    "drop_thinking", "chat_template_kwargs", "timeout", "priority", "cache_salt",
)  # fmt: skip
"""What ``LLM.chat`` takes beside messages, sampling and request_id."""


def chat_request(body: Mapping[str, Any], capabilities: Capabilities | None = None) -> GenerationRequest:
    """The request of a ``/v1/chat/completions`` body; null is absent.

    With ``capabilities``, values the engine does not act on are refused and an absent temperature becomes the one in
    force.

    Raises:
        ConfigurationError, UnsupportedFeatureError: ``param`` names the field.
    """
    body = present(body)
    if capabilities is not None:
        check_fields(body, CHAT, capabilities)
    return _request(body, sampling_of(body, capabilities))


def chat_call(
    messages: Sequence[Mapping[str, Any]],
    sampling_params: SamplingParams | None,
    capabilities: Capabilities,
    *,
    request_id: str | None = None,
    **fields: Any,
) -> GenerationRequest:
    """The request of ``LLM.chat``: sampling as a Struct, every other field (:data:`CHAT_FIELDS`) as in the HTTP body.

    Raises:
        ConfigurationError, UnsupportedFeatureError: ``param`` names the field.
    """
    for name in fields:
        if name not in CHAT_FIELDS:
            raise ConfigurationError(
                f"chat() has no argument {name!r}; it takes {', '.join(CHAT_FIELDS)} and request_id, and sampling goes "
                "into SamplingParams.",
                param=name,
            )
    body = present({"messages": messages, "request_id": request_id, **fields})
    check_fields(body, CHAT, capabilities)
    params = given_or_default(sampling_params)
    if "response_format" in body:
        params = msgspec.structs.replace(params, response_format=checked_response_format(body["response_format"]))
    return _request(body, params)


def _request(body: Mapping[str, Any], params: SamplingParams) -> GenerationRequest:
    """The API guide wants ``prompt`` to hold the rendering of a checkpoint without a template of its own."""
    spec = _chat_spec(body)
    return build_request(body, params, spec, prompt=render_fallback_prompt(spec.messages or []))


def _chat_spec(body: Mapping[str, Any]) -> PromptSpec:
    if "messages" not in body:
        raise ConfigurationError('"messages" is missing: send a list of messages.', param="messages")
    messages = normalize_messages(body["messages"])
    spec = tool_spec(body)
    mode, effort = _thinking(body)
    continued = truth_of(body, "continue_final_message", False)
    if continued:
        _check_continuation(body, messages)
    _check_one_form(body, spec)
    return msgspec.structs.replace(
        spec,
        messages=messages,
        thinking_mode=mode,
        reasoning_effort=effort,
        add_generation_prompt=truth_of(body, "add_generation_prompt", True) and not continued,
        drop_thinking=truth_of(body, "drop_thinking", True),
        continue_final_message=continued,
        tool_call_streaming=_tool_call_streaming(body),
        chat_template_kwargs=_template_variables(body),
    )


def _check_continuation(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
    if body.get("add_generation_prompt"):
        raise ConfigurationError(
            "continue_final_message and add_generation_prompt exclude each other: send one of them as true.",
            param="continue_final_message",
        )
    last = messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        raise ConfigurationError(
            "continue_final_message needs a last message of the assistant, without tool calls: its text is continued.",
            param="continue_final_message",
        )


def _check_one_form(body: Mapping[str, Any], spec: PromptSpec) -> None:
    given = body.get("response_format")
    kind = given.get("type", "text") if isinstance(given, Mapping) else None
    if (kind not in (None, "text") or body.get("structured_outputs")) and spec.forces_calls:
        raise ConfigurationError(
            "tool_choice asks for a call, and response_format or structured_outputs for another form of answer: send "
            "one of them.",
            param="tool_choice",
        )


def _template_variables(body: Mapping[str, Any]) -> dict[str, Any]:
    variables = body.get("chat_template_kwargs", {})
    if not isinstance(variables, Mapping) or not all(isinstance(key, str) for key in variables):
        raise ConfigurationError("chat_template_kwargs must be an object.", param="chat_template_kwargs")
    reserved = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"} & set(variables)
    if reserved:
        raise ConfigurationError(
            f"chat_template_kwargs may not set {', '.join(sorted(reserved))}: these have fields of their own.",
            param="chat_template_kwargs",
        )
    return copy.deepcopy(dict(variables))


def _tool_call_streaming(body: Mapping[str, Any]) -> str:
    value = body.get("tool_call_streaming", "certain")
    if not isinstance(value, str) or value not in TOOL_CALL_STREAMING:
        raise ConfigurationError(
            f"tool_call_streaming = {shown(value)} is unknown: use {' or '.join(TOOL_CALL_STREAMING)}.",
            param="tool_call_streaming",
        )
    return value


def _thinking(body: Mapping[str, Any]) -> tuple[str, str | None]:
    """Thinking mode and effort: an explicit mode wins; asking for any reasoning means thinking; else plain chat."""
    mode = body.get("thinking_mode")
    if mode is not None and mode not in THINKING_MODES:
        raise ConfigurationError(
            f"thinking_mode = {shown(mode)} is unknown: use 'thinking' or 'chat'.", param="thinking_mode"
        )
    reasoning = body.get("reasoning")
    if reasoning is not None and not isinstance(reasoning, Mapping | bool | str):
        raise ConfigurationError('reasoning must be an object such as {"effort": "low"}.', param="reasoning")
    effort = body.get("reasoning_effort")
    if effort is not None and not isinstance(effort, str):
        raise ConfigurationError(f"reasoning_effort = {shown(effort)} is not a word.", param="reasoning_effort")
    if isinstance(reasoning, str):
        effort = reasoning
    elif isinstance(reasoning, Mapping) and reasoning.get("effort") is not None:
        effort = reasoning["effort"]
    off = (
        reasoning is False or effort == "none" or (isinstance(reasoning, Mapping) and reasoning.get("enabled") is False)
    )
    wants = (reasoning is not None or effort is not None) and not off
    # Words of other vendors do not fail a request: the template's own default applies.
    known = effort if effort in EFFORTS else None
    return mode or ("thinking" if wants else "chat"), known
