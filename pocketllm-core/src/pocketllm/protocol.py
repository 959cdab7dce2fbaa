"""From OpenAI-shaped request bodies, or the arguments of ``LLM.chat``, to :class:`GenerationRequest`.

The one builder for the Python API and the server. It takes plain mappings, mutates none of them, and imports no
runtime. Types and unknown fields are the wire layer's business; what is checked here is meaning.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm.fields import CHAT, COMPLETIONS, check_fields
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Capabilities, GenerationRequest, new_request_id

Prompt = str | Sequence[int]
"""Text, or token ids."""

PART_MARK = "#"
"""Joins a request id and the number of a further prompt of the same call: cancelling the id reaches them all."""

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
EFFORTS = ("minimal", "low", "medium", "high", "max", "xhigh")
THINKING_MODES = ("thinking", "chat")
RESPONSE_FORMATS = ("text", "json_object", "json_schema")

_SAMPLING_FIELDS = tuple(name for name in SamplingParams.__struct_fields__ if name != "extra")
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
_MESSAGE_FIELDS = ("name", "tool_call_id")


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
    """The request of ``LLM.chat``: sampling as a Struct, every other field as in the HTTP body.

    ``fields``: reasoning, reasoning_effort, thinking_mode, tools, tool_choice, parallel_tool_calls, response_format,
    add_generation_prompt, drop_thinking, chat_template_kwargs.

    Raises:
        ConfigurationError, UnsupportedFeatureError: ``param`` names the field.
    """
    known = (
        "reasoning", "reasoning_effort", "thinking_mode", "tools", "tool_choice", "parallel_tool_calls",
        "response_format", "add_generation_prompt", "drop_thinking", "chat_template_kwargs",
    )  # fmt: skip
    for name in fields:
        if name not in known:
            raise ConfigurationError(
                f"chat() has no argument {name!r}; it takes {', '.join(known)} and request_id, and sampling goes into "
                "SamplingParams.",
                param=name,
            )
    body = _present({"messages": messages, **fields})
    check_fields(body, CHAT, capabilities)
    metadata = _chat_metadata(body)
    params = _given_or_default(sampling_params, capabilities)
    if "response_format" in body:
        params = msgspec.structs.replace(params, response_format=_response_format(body["response_format"]))
    body = {} if request_id is None else {"request_id": request_id}
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
    sampling = dict(body)
    if "logprobs" in sampling:
        sampling["top_logprobs"] = sampling["logprobs"]
        sampling["logprobs"] = True
    params = _sampling(sampling, capabilities)
    return [
        _request({"request_id": part_id}, params, **_prompt_fields(prompt))
        for part_id, prompt in _numbered(split_prompts(body["prompt"]), body.get("request_id"))
    ]


def prompt_requests(
    prompts: Prompt | Sequence[Prompt],
    sampling_params: SamplingParams | None,
    request_id: str | None,
    capabilities: Capabilities | None = None,
) -> list[GenerationRequest]:
    """The requests of ``LLM.generate``, one per prompt in order."""
    params = _given_or_default(sampling_params, capabilities)
    return [
        _request({"request_id": part_id}, params, **_prompt_fields(prompt))
        for part_id, prompt in _numbered(split_prompts(prompts), request_id)
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
    if all(_is_id(item) for item in prompts):
        return [tuple(prompts)]
    parts: list[Prompt] = []
    for index, item in enumerate(prompts):
        if isinstance(item, str):
            parts.append(item)
        elif isinstance(item, Sequence) and item and all(_is_id(token) for token in item):
            parts.append(tuple(item))
        else:
            raise ConfigurationError(
                f"prompt[{index}] is {_short(item)}: every entry must be text or a non-empty list of token ids.",
                param="prompt",
            )
    return parts


def normalize_messages(messages: object) -> list[dict[str, Any]]:
    """Messages as templates want them: known roles, text content, tool calls copied, reasoning under one name.

    Raises:
        ConfigurationError: a message is malformed; names its index.
        UnsupportedFeatureError: a part is not text.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise ConfigurationError("messages must be a non-empty list of messages.", param="messages")
    return [_message(index, message) for index, message in enumerate(messages)]


def flatten_content(content: object, where: str) -> str:
    """Text of a message: null is empty, parts of type text are joined by newlines."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise ConfigurationError(
            f"{where}.content is {type(content).__name__}: send a string, null, or a list of parts.", param="messages"
        )
    texts: list[str] = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in _TEXT_PARTS:
            if kind is None:
                raise ConfigurationError(f"{where}.content[{index}] is not a part with a type.", param="messages")
            raise UnsupportedFeatureError(
                f"{where}.content[{index}] has type {kind!r}, but this model takes text alone: remove the part.",
                param="messages",
            )
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise ConfigurationError(f"{where}.content[{index}] has no text.", param="messages")
        texts.append(text)
    return "\n".join(texts)


def _message(index: int, message: object) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise ConfigurationError(f"{where} is {type(message).__name__}, not an object with a role.", param="messages")
    role = message.get("role")
    if role not in ROLES:
        raise ConfigurationError(
            f"{where}.role = {_short(role)} is unknown: use one of {', '.join(ROLES)}.", param="messages"
        )
    # Templates know neither OpenAI's newer name for system nor its older one for tool.
    role = {"developer": "system", "function": "tool"}.get(role, role)
    normal: dict[str, Any] = {"role": role, "content": flatten_content(message.get("content"), where)}
    for name in _MESSAGE_FIELDS:
        value = message.get(name)
        if value is not None:
            if not isinstance(value, str):
                raise ConfigurationError(f"{where}.{name} is not a string.", param="messages")
            normal[name] = value
    reasoning = message.get("reasoning_content", message.get("reasoning"))
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise ConfigurationError(f"{where}.reasoning_content is not a string.", param="messages")
        normal["reasoning_content"] = reasoning
    calls = message.get("tool_calls")
    if calls:
        normal["tool_calls"] = [
            _tool_call(f"{where}.tool_calls[{i}]", call) for i, call in enumerate(_list(calls, where))
        ]
    return normal


def _tool_call(where: str, call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ConfigurationError(f"{where} is not a call with function.name.", param="messages")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str | Mapping):
        raise ConfigurationError(
            f"{where}.function.arguments is neither a JSON string nor an object.", param="messages"
        )
    copied: dict[str, Any] = copy.deepcopy(dict(call))
    copied.setdefault("type", "function")
    return copied


def normalize_tools(tools: object) -> list[dict[str, Any]]:
    """Tool definitions as templates want them, copied.

    Raises:
        ConfigurationError: a definition is not ``{"type": "function", "function": {"name": ...}}``.
    """
    normal: list[dict[str, Any]] = []
    for index, tool in enumerate(_list(tools, "tools", "tools")):
        where = f"tools[{index}]"
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if (
            not isinstance(tool, Mapping)
            or tool.get("type", "function") != "function"
            or not isinstance(function, Mapping)
        ):
            raise ConfigurationError(
                f'{where} is not a function tool: send {{"type": "function", "function": {{...}}}}.', param="tools"
            )
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise ConfigurationError(f"{where}.function.name is missing.", param="tools")
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise ConfigurationError(f"{where}.function.parameters is not a JSON schema object.", param="tools")
        copied: dict[str, Any] = copy.deepcopy(dict(tool))
        copied["type"] = "function"
        normal.append(copied)
    return normal


def _chat_metadata(body: Mapping[str, Any]) -> dict[str, Any]:
    if "messages" not in body:
        raise ConfigurationError('"messages" is missing: send a list of messages.', param="messages")
    metadata: dict[str, Any] = {"messages": normalize_messages(body["messages"])}
    if body.get("tools"):
        metadata["tools"] = normalize_tools(body["tools"])
    mode, effort = _thinking(body)
    metadata["thinking_mode"] = mode
    if effort is not None:
        metadata["reasoning_effort"] = effort
    for name in ("add_generation_prompt", "drop_thinking"):
        if name in body:
            metadata[name] = _truth(name, body[name])
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
    return metadata


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


def _response_format(value: object) -> dict[str, Any]:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or kind not in RESPONSE_FORMATS:
        raise ConfigurationError(
            f"response_format.type = {_short(kind)} is unknown: use {', '.join(RESPONSE_FORMATS)}.",
            param="response_format",
        )
    if kind == "json_schema":
        outer = value.get("json_schema")
        if not isinstance(outer, Mapping) or not isinstance(outer.get("schema"), Mapping | bool):
            raise ConfigurationError("response_format.json_schema.schema is missing.", param="response_format")
    return copy.deepcopy(dict(value))


def _sampling(body: Mapping[str, Any], capabilities: Capabilities | None) -> SamplingParams:
    names = (*_SAMPLING_FIELDS, "max_completion_tokens")
    values = {name: body[name] for name in names if name in body}
    if "stop" in values:
        stop = values["stop"]
        # Some clients pad the list with empty strings, which match nothing.
        values["stop"] = [item for item in (stop if isinstance(stop, list | tuple) else [stop]) if item != ""]
    if "response_format" in values:
        values["response_format"] = _response_format(values["response_format"])
    if "temperature" not in values and capabilities is not None and not capabilities.per_request_sampling:
        values["temperature"] = capabilities.temperature
    return SamplingParams.from_openai(values)


def _given_or_default(params: SamplingParams | None, capabilities: Capabilities | None) -> SamplingParams:
    if params is not None:
        if not isinstance(params, SamplingParams):
            raise ConfigurationError(
                f"sampling_params is {type(params).__name__}: give a SamplingParams.", param="sampling_params"
            )
        return params
    return _sampling({}, capabilities)


def _request(body: Mapping[str, Any], params: SamplingParams, **fields: Any) -> GenerationRequest:
    request_id = body.get("request_id")
    if request_id is None:
        return GenerationRequest(sampling_params=params, **fields)
    if not isinstance(request_id, str) or not 0 < len(request_id) <= 256 or not request_id.isprintable():
        raise ConfigurationError(
            f"request_id = {_short(request_id)} must be 1 to 256 printable characters.", param="request_id"
        )
    return GenerationRequest(sampling_params=params, request_id=request_id, **fields)


def _prompt_fields(prompt: Prompt) -> dict[str, Any]:
    return {"prompt": prompt} if isinstance(prompt, str) else {"prompt_tokens": tuple(prompt)}


def _numbered(prompts: list[Prompt], request_id: object) -> list[tuple[object, Prompt]]:
    first = request_id if request_id is not None else new_request_id()
    return [(first if i == 0 else f"{first}{PART_MARK}{i}", prompt) for i, prompt in enumerate(prompts)]


def _role_lines(messages: list[dict[str, Any]]) -> str:
    """The deterministic rendering that stands in for a chat template nobody brought."""
    from pocketllm.text.fallback_prompt import render_fallback_prompt

    return render_fallback_prompt(messages)


def _present(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _is_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _list(value: object, where: str, param: str = "messages") -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ConfigurationError(f"{where}: a list was expected, not {type(value).__name__}.", param=param)
    return value


def _truth(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} = {_short(value)} is not true or false.", param=name)
    return value


def _short(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
