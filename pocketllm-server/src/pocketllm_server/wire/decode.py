"""From the bytes of a request body to the fields that were set, each of the right type and in bounds."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec.structs import FieldInfo

from pocketllm.errors import ConfigurationError, PocketLLMError
from pocketllm.fields import shown, unsupported
from pocketllm_server.wire.errors import HTTPError
from pocketllm_server.wire.request_bodies import StreamOptions

# Templates and copies recurse with several Python frames per level: this depth stays far from the interpreter's limit.
MAX_DEPTH = 64

# Decoding and checking this much takes about a millisecond; more belongs into a thread, so that probes are answered.
MAX_QUICK_BYTES = 64 * 1024
MAX_QUICK_MARKS = 4096

# What the frames to a child process can carry.
MIN_INT, MAX_INT = -(2**63), 2**64 - 1

_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_PATH = re.compile(r" - at `\$(.*)`$")
_FIELDS: dict[type[msgspec.Struct], dict[str, FieldInfo]] = {}

# Wording of the guide for the shapes that clients get wrong most often.
_SHAPES: dict[str, tuple[str, str]] = {
    "stop": (
        "a stop sequence is a string, or a list of strings, and this value is neither",
        'Send "stop" as a string or an array of strings',
    ),
    "n": ("the number of choices is a whole number from 1 to 128", 'Send "n" in that range'),
    "top_logprobs": ("the number of alternatives is a whole number from 0 to 20", 'Send "top_logprobs" in that range'),
    "prompt": (
        "a prompt is a string, a list of token ids, or a non-empty list of one of the two",
        'Send "prompt" in one of these shapes',
    ),
}
_SHAPES["request_id"] = (
    "an id is 1 to 256 visible ASCII characters without #",
    'Send "request_id" in that form, or leave it out',
)
_LOGPROBS = {
    "ChatBody": (
        "on this endpoint it is true or false, and the number of alternatives is top_logprobs",
        'Send "logprobs" as a boolean',
    ),
    "CompletionBody": (
        "on this endpoint it is the number of alternatives, a whole number from 0 to 20",
        'Send "logprobs" as a count',
    ),
}


class MalformedBodyError(ConfigurationError):
    """The body is not a JSON object that this server reads."""


def is_quick(data: bytes) -> bool:
    """Whether a body may be decoded on the event loop."""
    return len(data) <= MAX_QUICK_BYTES and _num_marks(data) <= MAX_QUICK_MARKS


def decode_object(data: bytes, max_values: int) -> dict[str, Any]:
    """Parse a JSON object; of a repeated key the last value counts.

    Raises:
        HTTPError: 413 for more than ``max_values`` values and keys.
        MalformedBodyError: not UTF-8, not JSON, not an object, nested deeper than :data:`MAX_DEPTH`, or with
            whole numbers of more than 64 bits.
    """
    if has_more_values(data, max_values):
        raise HTTPError(
            413,
            f"The request body holds more than {max_values} JSON values and keys: send fewer, or raise the server's "
            f"limit (max_json_values = {max_values}).",
            code="body_too_large",
        )
    try:
        body = msgspec.json.decode(data)
    except msgspec.DecodeError as error:  # ValidationError, for a number out of range, is one too
        raise MalformedBodyError(f"The request body is not valid JSON: {error}.") from None
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(body, dict):
        raise MalformedBodyError("The request body is not a JSON object: send the fields between braces.")
    _check_values(body, may_overflow=_LONG_NUMBER.search(data) is not None)
    return body


def has_more_values(data: bytes, limit: int) -> bool:
    """Whether JSON holds more than ``limit`` values and keys, an empty container being one.

    Decoding holds the interpreter's lock from the first byte to the last, and takes microseconds for each value: a few
    megabytes of ``[],[],`` would stop the event loop for seconds. Counting takes a thousandth of that.
    """
    if _num_marks(data) <= limit:
        return False
    # Text may hold marks too: look outside of the strings. Each string is a value or a key.
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 2 * limit + 2:
        return True
    return _num_marks(b"".join(unescaped.split(b'"')[::2])) > limit


def _num_marks(data: bytes) -> int:
    """An item is one comma or the opening bracket before it; an object's item has a colon more, for its key."""
    return data.count(b",") + data.count(b":") + data.count(b"[") + data.count(b"{")


def _check_values(body: dict[str, Any], *, may_overflow: bool) -> None:
    level: list[Any] = [body]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            items = container.values() if isinstance(container, dict) else container
            below += [item for item in items if isinstance(item, dict | list)]
            if may_overflow and any(isinstance(item, int) and not MIN_INT <= item <= MAX_INT for item in items):
                raise _too_long(body)
        if not below:
            return
        level = below
    raise _too_deep()


def _too_long(body: dict[str, Any]) -> MalformedBodyError:
    name = next(
        (key for key, value in body.items() if isinstance(value, int) and not MIN_INT <= value <= MAX_INT), None
    )
    where = "The request body" if name is None else f'"{name}"'
    return MalformedBodyError(f"{where} holds a whole number of more than 64 bits: send a smaller one.", param=name)


def _too_deep() -> MalformedBodyError:
    return MalformedBodyError(f"The request body is nested more than {MAX_DEPTH} levels deep: flatten it.")


def set_fields(body: dict[str, Any], shape: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of ``shape`` that ``body`` sets, null being absent, as plain JSON values of the declared types.

    Fields that ``shape`` does not have are left out.

    Raises:
        ConfigurationError: a value is of another type or out of bounds, or a required field is missing.
    """
    known = _FIELDS.get(shape)
    if known is None:
        known = _FIELDS[shape] = {field.name: field for field in msgspec.structs.fields(shape)}
    values: dict[str, Any] = {}
    for name, value in body.items():
        field = known.get(name)
        if field is None or value is None:
            continue
        try:
            msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            raise _wrong(name, value, shape, str(error)) from None
        values[name] = value
    for name, field in known.items():
        if field.required and name not in values:
            raise ConfigurationError(f'"{name}" is missing: this endpoint needs it.', param=name)
    if "stop" in values:
        # Empty strings match nothing; some clients pad the list with them.
        stop = values["stop"]
        values["stop"] = [text for text in ([stop] if isinstance(stop, str) else stop) if text]
    if isinstance(values.get("prompt"), list) and len({type(item) for item in values["prompt"]}) > 1:
        raise unsupported("prompt", values["prompt"], *_SHAPES["prompt"])
    return values


def unknown_fields(body: dict[str, Any], shape: type[msgspec.Struct]) -> list[str]:
    """Names that ``body`` sets and nobody documents, in its order, those inside ``stream_options`` included."""
    names = [name for name, value in body.items() if value is not None and name not in shape.__struct_fields__]
    options = body.get("stream_options")
    if isinstance(options, dict):
        known = StreamOptions.__struct_fields__
        names += [f"stream_options.{name}" for name in options if name not in known]
    return names


def _wrong(name: str, value: Any, shape: type[msgspec.Struct], reason: str) -> PocketLLMError:
    wording = _LOGPROBS.get(shape.__name__) if name == "logprobs" else _SHAPES.get(name)
    if wording is not None:
        return unsupported(name, value, *wording)
    where = ""
    match = _PATH.search(reason)
    if match:
        where, reason = match.group(1), reason[: match.start()]
    reason = reason.replace("`", "")
    return ConfigurationError(
        f'"{name}{where}" is wrong: {reason[:1].lower()}{reason[1:]}. The field was {shown(value)}.', param=name
    )
