"""Messages of a request, in the one form that chat templates get. Nothing given is mutated."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pocketllm.errors import ConfigurationError, UnsupportedFeatureError, shown

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
            f"{where}.role = {shown(role)} is unknown: use one of {', '.join(ROLES)}.", param="messages"
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
            _tool_call(f"{where}.tool_calls[{i}]", call) for i, call in enumerate(list_of(calls, where))
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


def list_of(value: object, where: str, param: str = "messages") -> Sequence[Any]:
    """``value`` as a list.

    Raises:
        ConfigurationError: it is something else.
    """
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ConfigurationError(f"{where}: a list was expected, not {type(value).__name__}.", param=param)
    return value
