"""From OpenAI-shaped request bodies, or the arguments of ``LLM.chat``, to :class:`GenerationRequest`.

The one builder for the Python API and the server. It takes plain mappings, mutates none of them, and imports no
runtime. Types and unknown fields are the wire layer's business; what is checked here is meaning.

``GenerationRequest.metadata`` holds for the prompt boundary, each key only when it says something:

* ``messages`` (normalised), ``thinking_mode``, ``reasoning_effort``, ``add_generation_prompt``, ``drop_thinking``,
  ``continue_final_message``, ``chat_template_kwargs``;
* ``tools``, ``tool_choice``, ``parallel_tool_calls``: see :func:`pocketllm.protocol.conversation.tool_metadata`;
* ``tool_call_streaming``: "certain" or "eager";
* ``suffix`` of a completion; ``echo`` and ``score_only`` (no token was asked for; one is generated and not shown).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm.fields import CHAT, COMPLETIONS, check_fields
from pocketllm.fields.token_ids import are_token_ids
from pocketllm.protocol.conversation import normalize_messages, tool_metadata
from pocketllm.protocol.output_constraint import checked_response_format, constraint_of
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Capabilities, GenerationRequest, new_request_id

Prompt = str | Sequence[int]
"""Text, or token ids."""

EFFORTS = ("minimal", "low", "medium", "high", "max", "xhigh")
THINKING_MODES = ("thinking", "chat")
TOOL_CALL_STREAMING = ("certain", "eager")
MAX_SALT_CHARS = 1024
MAX_TIMEOUT_S = 7 * 24 * 3600

CHAT_FIELDS = (
    "reasoning", "reasoning_effort", "thinking_mode", "tools", "tool_choice", "parallel_tool_calls",
    "tool_call_streaming", "response_format", "structured_outputs", "add_generation_prompt", "continue_final_message",
    "drop_thinking", "chat_template_kwargs", "timeout", "priority", "cache_salt",
)  # fmt: skip
"""What ``LLM.chat`` takes beside messages, sampling and request_id."""

_SAMPLING_FIELDS = tuple(name for name in SamplingParams.__struct_fields__ if name not in ("extra", "prompt_logprobs"))


def chat_request(body: Mapping[str, Any], capabilities: Capabilities | None = None) -> GenerationRequest:
    """The request of a ``/v1/chat/completions`` body; null is absent.

    With ``capabilities``, values the engine does not act on are refused and an absent temperature becomes the one in
    force.

    Raises:
        ConfigurationError, UnsupportedFeatureError: ``param`` names the field.
    """
    body = _present(body)
    if capabilities is not None:
        check_fields(body, CHAT, capabilities)
    metadata = _chat_metadata(body)
    params = _sampling(body, capabilities)
    return _request(body, params, prompt=_role_lines(metadata["messages"]), metadata=metadata)


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
    body = _present({"messages": messages, "request_id": request_id, **fields})
    check_fields(body, CHAT, capabilities)
    metadata = _chat_metadata(body)
    params = _given_or_default(sampling_params)
    if "response_format" in body:
        params = msgspec.structs.replace(params, response_format=checked_response_format(body["response_format"]))
    return _request(body, params, prompt=_role_lines(metadata["messages"]), metadata=metadata)


def completion_request(body: Mapping[str, Any], capabilities: Capabilities | None = None) -> list[GenerationRequest]:
    """The requests of a ``/v1/completions`` body, one per prompt in order.

    ``logprobs`` is a count here. Raises as :func:`chat_request`.
    """
    body = _present(body)
    if capabilities is not None:
        check_fields(body, COMPLETIONS, capabilities)
    if "prompt" not in body:
        raise ConfigurationError('"prompt" is missing: send text, token ids, or a list of either.', param="prompt")
    sampling, metadata = _completion_metadata(body)
    params = _sampling(sampling, capabilities)
    if metadata.get("echo") and params.logprobs:
        params = msgspec.structs.replace(params, prompt_logprobs=True)
    call_id = body.get("request_id", new_request_id())
    return [
        _request(
            {**body, "request_id": _part_id(call_id, index)},
            params,
            call_id=call_id,
            metadata=metadata,
            **_prompt_fields(prompt),
        )
        for index, prompt in enumerate(split_prompts(body["prompt"]))
    ]


def _completion_metadata(body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sampling fields as the sampler means them, and what the answer needs to know."""
    sampling = dict(body)
    if "logprobs" in sampling:
        sampling["top_logprobs"] = sampling["logprobs"]
        sampling["logprobs"] = True
    metadata: dict[str, Any] = {}
    if _truth("echo", body.get("echo", False)):
        metadata["echo"] = True
        name = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
        if sampling.get(name) == 0 and sampling[name] is not False:
            # OpenAI's way to have a prompt scored. A sequence has at least one step, whose token is then not shown.
            metadata["score_only"] = True
            sampling[name] = 1
    suffix = body.get("suffix", "")
    if not isinstance(suffix, str):
        raise ConfigurationError(f"suffix = {_short(suffix)} is not a string.", param="suffix")
    if suffix:
        metadata["suffix"] = suffix
    return sampling, metadata


def prompt_requests(
    prompts: Prompt | Sequence[Prompt],
    sampling_params: SamplingParams | None,
    request_id: str | None,
) -> list[GenerationRequest]:
    """The requests of ``LLM.generate``, one per prompt in order."""
    params = _given_or_default(sampling_params)
    call_id = new_request_id() if request_id is None else request_id
    return [
        _request({"request_id": _part_id(call_id, index)}, params, call_id=call_id, **_prompt_fields(prompt))
        for index, prompt in enumerate(split_prompts(prompts))
    ]


def split_prompts(prompts: object) -> list[Prompt]:
    """Tell text, a list of texts, token ids and lists of token ids apart.

    Raises:
        ConfigurationError: anything else, an empty list, or a mixture.
    """
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes | bytearray):
        raise ConfigurationError(
            f"prompt is {type(prompts).__name__}: give text, token ids, or a list of either.", param="prompt"
        )
    if not prompts:
        raise ConfigurationError("prompt is an empty list: give at least one prompt.", param="prompt")
    if are_token_ids(prompts):
        return [tuple(prompts)]
    parts: list[Prompt] = []
    for index, item in enumerate(prompts):
        if isinstance(item, str):
            parts.append(item)
        elif isinstance(item, Sequence) and item and are_token_ids(item):
            parts.append(tuple(item))
        else:
            raise ConfigurationError(
                f"prompt[{index}] is {_short(item)}: every entry must be text or a non-empty list of token ids.",
                param="prompt",
            )
    return parts


def _chat_metadata(body: Mapping[str, Any]) -> dict[str, Any]:
    if "messages" not in body:
        raise ConfigurationError('"messages" is missing: send a list of messages.', param="messages")
    metadata: dict[str, Any] = {"messages": normalize_messages(body["messages"]), **tool_metadata(body)}
    mode, effort = _thinking(body)
    metadata["thinking_mode"] = mode
    if effort is not None:
        metadata["reasoning_effort"] = effort
    for name in ("add_generation_prompt", "drop_thinking"):
        if name in body:
            metadata[name] = _truth(name, body[name])
    if _truth("continue_final_message", body.get("continue_final_message", False)):
        _check_continuation(metadata)
        metadata.update(continue_final_message=True, add_generation_prompt=False)
    if "tool_call_streaming" in body:
        metadata["tool_call_streaming"] = _one_of("tool_call_streaming", body, TOOL_CALL_STREAMING)
    if "chat_template_kwargs" in body:
        variables = body["chat_template_kwargs"]
        if not isinstance(variables, Mapping) or not all(isinstance(key, str) for key in variables):
            raise ConfigurationError("chat_template_kwargs must be an object.", param="chat_template_kwargs")
        reserved = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"} & set(variables)
        if reserved:
            raise ConfigurationError(
                f"chat_template_kwargs may not set {', '.join(sorted(reserved))}: these have fields of their own.",
                param="chat_template_kwargs",
            )
        metadata["chat_template_kwargs"] = copy.deepcopy(dict(variables))
    wants_format = _kind(body.get("response_format")) not in (None, "text") or body.get("structured_outputs")
    if wants_format and metadata.get("tool_choice", "none") != "none":
        raise ConfigurationError(
            "tool_choice asks for a call, and response_format or structured_outputs for another form of answer: send "
            "one of them.",
            param="tool_choice",
        )
    return metadata


def _check_continuation(metadata: Mapping[str, Any]) -> None:
    if metadata.get("add_generation_prompt"):
        raise ConfigurationError(
            "continue_final_message and add_generation_prompt exclude each other: send one of them as true.",
            param="continue_final_message",
        )
    last = metadata["messages"][-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        raise ConfigurationError(
            "continue_final_message needs a last message of the assistant, without tool calls: its text is continued.",
            param="continue_final_message",
        )


def _thinking(body: Mapping[str, Any]) -> tuple[str, str | None]:
    """Thinking mode and effort: an explicit mode wins; asking for any reasoning means thinking; else plain chat."""
    mode = body.get("thinking_mode")
    if mode is not None and mode not in THINKING_MODES:
        raise ConfigurationError(
            f"thinking_mode = {_short(mode)} is unknown: use 'thinking' or 'chat'.", param="thinking_mode"
        )
    reasoning = body.get("reasoning")
    if reasoning is not None and not isinstance(reasoning, Mapping | bool | str):
        raise ConfigurationError('reasoning must be an object such as {"effort": "low"}.', param="reasoning")
    effort = body.get("reasoning_effort")
    if effort is not None and not isinstance(effort, str):
        raise ConfigurationError(f"reasoning_effort = {_short(effort)} is not a word.", param="reasoning_effort")
    if isinstance(reasoning, str):
        effort = reasoning
    elif isinstance(reasoning, Mapping) and reasoning.get("effort") is not None:
        effort = reasoning["effort"]
    off = (
        reasoning is False or effort == "none" or (isinstance(reasoning, Mapping) and reasoning.get("enabled") is False)
    )
    wants = (reasoning is not None or effort is not None) and not off
    # Words of other vendors are no reason to fail a request: the template's own default applies.
    known = effort if effort in EFFORTS else None
    return mode or ("thinking" if wants else "chat"), known


def _sampling(body: Mapping[str, Any], capabilities: Capabilities | None) -> SamplingParams:
    names = (*_SAMPLING_FIELDS, "max_completion_tokens")
    values = {name: body[name] for name in names if name in body}
    if "stop" in values:
        stop = values["stop"]
        # Some clients pad the list with empty strings, which match nothing.
        values["stop"] = [item for item in (stop if isinstance(stop, list | tuple) else [stop]) if item != ""]
    if "response_format" in values:
        values["response_format"] = checked_response_format(values["response_format"])
    top_k = values.get("top_k")
    if _is_id(top_k) and top_k in (0, -1):  # the two ways clients say that it is off
        if capabilities is not None and not capabilities.per_request_top_k and capabilities.top_k:
            raise UnsupportedFeatureError(
                f'"top_k" = {top_k} is not supported by this server: backend {capabilities.name!r} uses top_k = '
                f'{capabilities.top_k} for every request. Send "top_k" as {capabilities.top_k} or leave it out.',
                param="top_k",
            )
        del values["top_k"]
    return SamplingParams.from_openai(values)


def _given_or_default(params: object) -> SamplingParams:
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise ConfigurationError(
            f"sampling_params is {type(params).__name__}: give a SamplingParams.", param="sampling_params"
        )
    return params


def _request(body: Mapping[str, Any], params: SamplingParams, **fields: Any) -> GenerationRequest:
    """The request around a prompt: its name, its constraint, and how it is scheduled."""
    fields["constraint"] = constraint_of(body)
    request_id = body.get("request_id")
    if request_id is not None:
        if not isinstance(request_id, str) or not 0 < len(request_id) <= 256 or not request_id.isprintable():
            raise ConfigurationError(
                f"request_id = {_short(request_id)} must be 1 to 256 printable characters.", param="request_id"
            )
        fields["request_id"] = request_id
    priority = body.get("priority", 0)
    if not _is_id(priority) or not -(2**31) <= priority < 2**31:
        raise ConfigurationError(f"priority = {_short(priority)} is not a whole number of 32 bits.", param="priority")
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not 0 < len(salt) <= MAX_SALT_CHARS):
        raise ConfigurationError(
            f"cache_salt = {_short(salt)} must be a string of 1 to {MAX_SALT_CHARS} characters.", param="cache_salt"
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
            f"timeout = {_short(seconds)} must be a number of seconds above 0 and at most {MAX_TIMEOUT_S}.",
            param="timeout",
        )
    return float(seconds)


def _prompt_fields(prompt: Prompt) -> dict[str, Any]:
    return {"prompt": prompt} if isinstance(prompt, str) else {"prompt_tokens": tuple(prompt)}


def _part_id(call_id: object, index: int) -> object:
    """The request id of one prompt of a call: the first has the call's id, a further one a number behind it."""
    return call_id if index == 0 else f"{call_id}#{index}"


def _role_lines(messages: list[dict[str, Any]]) -> str:
    """The deterministic rendering that stands in for a chat template nobody brought."""
    from pocketllm.text.fallback_prompt import render_fallback_prompt

    return render_fallback_prompt(messages)


def _present(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _is_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _truth(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} = {_short(value)} is not true or false.", param=name)
    return value


def _one_of(name: str, body: Mapping[str, Any], known: Sequence[str]) -> str:
    value = body[name]
    if not isinstance(value, str) or value not in known:
        raise ConfigurationError(f"{name} = {_short(value)} is unknown: use {' or '.join(known)}.", param=name)
    return value


def _kind(response_format: object) -> object:
    return response_format.get("type", "text") if isinstance(response_format, Mapping) else None


def _short(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
