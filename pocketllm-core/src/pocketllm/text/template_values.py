"""The private copy of a conversation that a chat template sees.

Callers' structures are never changed, and a template gets nothing but plain data. On the copy, what OpenAI clients send
and templates do not expect is put right: null content, lists of content parts, tool-call arguments as a JSON string.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pocketllm.errors import ConfigurationError, UnsupportedFeatureError

_MAX_DEPTH = 64


def plain_copy(value: object, param: str) -> Any:
    """Deep copy of JSON-like data: mappings to dict, sequences to list, scalars as they are.

    Raises:
        ConfigurationError: on anything else, a key that is not a string, or more than 64 levels; names ``param``.
    """
    return _copy(value, param, 0)


def template_messages(messages: object, *, developer_as_system: bool = False) -> list[dict[str, Any]]:
    """Copy of ``messages`` in the form templates expect.

    - ``content`` is always a string: null or missing is empty, text parts are joined by newlines.
    - Other fields that are null are left out, since templates often test only whether they are there.
    - The arguments of tool calls are mappings: a JSON object in a string is parsed; text that is not a JSON object is
      kept whole under the key ``arguments``, so that a malformed call of the past does not spoil the conversation.
    - With ``developer_as_system`` the role ``developer`` becomes ``system``, for templates that do not know it.

    Raises:
        ConfigurationError: ``messages`` is not a sequence of mappings with a string role, or a value is not plain
            data.
        UnsupportedFeatureError: a content part is not text.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        raise ConfigurationError("messages must be a list of messages with role and content.", param="messages")
    return [_message(message, f"messages[{index}]", developer_as_system) for index, message in enumerate(messages)]


def _message(message: object, where: str, developer_as_system: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        _refuse(where, message, "an object with role and content")
    if not isinstance(message.get("role"), str):
        _refuse(f"{where}.role", message.get("role"), "a string such as user or assistant")
    copy: dict[str, Any] = {
        key: value for key, value in plain_copy(message, "messages").items() if value is not None or key == "content"
    }
    if developer_as_system and copy["role"] == "developer":
        copy["role"] = "system"
    copy["content"] = _content_text(copy.get("content"), f"{where}.content")
    calls = copy.get("tool_calls")
    if isinstance(calls, list):
        for call in calls:
            # Templates take the call itself or the OpenAI wrapper around it.
            function = call.get("function", call) if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                function["arguments"] = _arguments(function["arguments"])
    return copy


def _content_text(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        _refuse(where, content, "a string, null or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] != "text":
            raise UnsupportedFeatureError(
                f"{where}[{index}] is of type {part['type']!r}, and only text parts are supported; send text.",
                param="messages",
            )
        else:
            _refuse(f"{where}[{index}]", part, 'a part such as {"type": "text", "text": "..."}')
    return "\n".join(texts)


def _arguments(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        if isinstance(value, dict):
            copied: dict[str, Any] = plain_copy(value, "messages")
            return copied
    except (ValueError, RecursionError):
        # Not JSON (ConfigurationError for too deep a value is a ValueError too): the text itself is the best there is.
        return {"arguments": text}
    return {"arguments": text}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _copy(value: object, param: str, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if depth >= _MAX_DEPTH:
        raise ConfigurationError(f"{param} is nested more than {_MAX_DEPTH} levels deep.", param=param)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigurationError(f"{param} has the key {key!r}; keys must be strings.", param=param)
        return {str(key): _copy(child, param, depth + 1) for key, child in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [_copy(child, param, depth + 1) for child in value]
    raise ConfigurationError(
        f"{param} holds a value of type {type(value).__name__}; only JSON-like data can be rendered.", param=param
    )


def _refuse(where: str, value: object, wanted: str) -> NoReturn:
    raise ConfigurationError(f"{where} is of type {type(value).__name__}; it must be {wanted}.", param="messages")
