"""Messages and tools of a request, in the one form that chat templates get. Nothing given is mutated."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pocketllm.errors import ConfigurationError, UnsupportedFeatureError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
CONTINUATION_MARK = "\ue000continue\ue001"
"""Stands at the end of a final message that is to be continued; no conversation has these private characters."""

_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
_MESSAGE_FIELDS = ("name", "tool_call_id")


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
    content = message.get("content")
    text = _tool_content(content, where) if role == "tool" else flatten_content(content, where)
    normal: dict[str, Any] = {"role": role, "content": text}
    for name in _MESSAGE_FIELDS:
        value = message.get(name)
        if value is not None:
            if not isinstance(value, str):
                raise ConfigurationError(f"{where}.{name} is not a string.", param="messages")
            normal[name] = value
    reasoning = message.get("reasoning_content")
    reasoning = message.get("reasoning") if reasoning is None else reasoning
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise ConfigurationError(f"{where}.reasoning_content is not a string.", param="messages")
        normal["reasoning_content"] = reasoning
    calls = message.get("tool_calls")
    if not calls and message.get("function_call"):
        calls = [{"type": "function", "function": message["function_call"]}]  # OpenAI's older spelling, in a history
    if calls:
        normal["tool_calls"] = [
            _tool_call(f"{where}.tool_calls[{i}]", call) for i, call in enumerate(_list(calls, where))
        ]
    return normal


def _tool_content(content: object, where: str) -> str:
    """A tool's result: text or parts like any content, and whatever else a client puts there as JSON."""
    parts = isinstance(content, Sequence) and all(
        isinstance(part, str) or (isinstance(part, Mapping) and "type" in part) for part in content
    )
    if content is None or isinstance(content, str) or (parts and not isinstance(content, bytes)):
        return flatten_content(content, where)
    if not isinstance(content, Mapping | list | tuple | bool | int | float):
        raise ConfigurationError(f"{where}.content is {type(content).__name__}: send a string.", param="messages")
    try:
        return msgspec.json.encode(content).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigurationError(f"{where}.content cannot be written as JSON: {error}.", param="messages") from None


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


def mark_final_message(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The normalised messages with :data:`CONTINUATION_MARK` at the end of the last one's content."""
    *before, last = messages
    return [*map(dict, before), {**last, "content": str(last.get("content") or "") + CONTINUATION_MARK}]


def cut_at_mark(rendered: str) -> str:
    """What a template rendered, up to the end of the message that :func:`mark_final_message` marked.

    Raises:
        ConfigurationError: the template does not print the last message's content.
    """
    head, mark, _ = rendered.rpartition(CONTINUATION_MARK)
    if not mark:
        raise ConfigurationError(
            "This checkpoint's chat template leaves the last message out, so it cannot be continued: send "
            "continue_final_message as false.",
            param="continue_final_message",
        )
    return head


# --------------------------------------------------------------------------------------------------------------- tools


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
        strict = function.get("strict")
        if strict is not None and not isinstance(strict, bool):
            raise ConfigurationError(f"{where}.function.strict is not true or false.", param="tools")
        copied: dict[str, Any] = copy.deepcopy(dict(tool))
        copied["type"] = "function"
        normal.append(copied)
    return normal


def tool_metadata(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a request says about tools, for the prompt boundary.

    ``tools``: the definitions that reach the template; absent under tool_choice none. ``tool_choice``: "none",
    "required" or ``{"name": ...}``; absent for auto. ``parallel_tool_calls``: False; absent for true.

    Raises:
        ConfigurationError: a definition or the choice is malformed, or the choice is of a tool that is not there.
    """
    tools = normalize_tools(body["tools"]) if body.get("tools") else []
    choice, tools = _tool_choice(body.get("tool_choice", "auto"), tools)
    metadata: dict[str, Any] = {}
    if tools and choice != "none":
        metadata["tools"] = tools
    if choice != "auto":
        metadata["tool_choice"] = choice
    parallel = body.get("parallel_tool_calls", True)
    if not isinstance(parallel, bool):
        raise ConfigurationError(
            f"parallel_tool_calls = {_short(parallel)} is not true or false.", param="parallel_tool_calls"
        )
    if not parallel and "tools" in metadata:
        metadata["parallel_tool_calls"] = False
    return metadata


def _tool_choice(choice: object, tools: list[dict[str, Any]]) -> tuple[str | dict[str, str], list[dict[str, Any]]]:
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        allowed = allowed if isinstance(allowed, Mapping) else choice
        names = {_chosen_name(item) for item in _list(allowed.get("tools"), "tool_choice.tools", "tool_choice")}
        _check_known(names, tools)
        mode = allowed.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise ConfigurationError(
                f"tool_choice.mode = {_short(mode)} is unknown: use auto or required.", param="tool_choice"
            )
        return mode, [tool for tool in tools if tool["function"]["name"] in names]
    if isinstance(choice, Mapping):
        name = _chosen_name(choice)
        _check_known({name}, tools)
        return {"name": name}, tools
    if choice not in ("auto", "none", "required"):
        raise ConfigurationError(
            f"tool_choice = {_short(choice)} is unknown: use auto, none, required, or "
            '{"type": "function", "function": {"name": …}}.',
            param="tool_choice",
        )
    if choice == "required" and not tools:
        raise ConfigurationError("tool_choice = 'required' needs tools: send at least one.", param="tool_choice")
    return str(choice), tools


def _chosen_name(choice: object) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if isinstance(choice, Mapping) and function is None:
        name = choice.get("name")  # the flat form of OpenAI's newer API
    if not isinstance(choice, Mapping) or choice.get("type", "function") != "function" or not isinstance(name, str):
        raise ConfigurationError(
            f"tool_choice = {_short(choice)} names no function: send "
            '{"type": "function", "function": {"name": …}}.',
            param="tool_choice",
        )
    return name


def _check_known(names: set[str], tools: list[dict[str, Any]]) -> None:
    known = [tool["function"]["name"] for tool in tools]
    for name in sorted(names):
        if name not in known:
            listed = ", ".join(known) or "none"
            raise ConfigurationError(
                f"tool_choice names {_short(name)}, which is not among the tools ({_short(listed, 200)}).",
                param="tool_choice",
            )


def _list(value: object, where: str, param: str = "messages") -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ConfigurationError(f"{where}: a list was expected, not {type(value).__name__}.", param=param)
    return value


def _short(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
