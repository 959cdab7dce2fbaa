"""From the bytes of a request body to the fields that were set, each of the right type and in bounds."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec.structs import FieldInfo

from pocketllm.errors import ConfigurationError, PocketLLMError
from pocketllm.fields import shown, unsupported
from pocketllm_server.wire.completions_request import StreamOptions
from pocketllm_server.wire.errors import HTTPError

# Templates and copies recurse with several Python frames per level: this depth stays far from the interpreter's limit.
MAX_DEPTH = 64

# Decoding and checking this much takes about a millisecond; more belongs into a thread, so that probes are answered.
MAX_QUICK_BYTES = 64 * 1024
MAX_QUICK_MARKS = 4096

PIECE_BYTES = 64 * 1024

# What the frames to a child process can carry.
MIN_INT, MAX_INT = -(2**63), 2**64 - 1

# Decoding makes a list or an object in the time of eight numbers or more, the garbage collector's visits included.
VALUES_PER_CONTAINER = 8

# A whole number of 19 digits or more, and no part of another number.
_LONG_NUMBER = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{19,}(?![0-9.eE])")
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_BRACES_AS_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
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

    Decoding holds the interpreter's lock from the first byte to the last, and takes microseconds for each value: what
    is too much is therefore found in the bytes before, and what is wrong in them too, not by walking over the values.

    Raises:
        HTTPError: 413 for more than ``max_values`` values and keys, or lists and objects of an eighth of that.
        MalformedBodyError: not UTF-8, not JSON, not an object, nested deeper than :data:`MAX_DEPTH`, or with
            whole numbers of more than 64 bits.
    """
    check_amounts(data, max_values)
    try:
        body = msgspec.json.decode(data)
    except msgspec.DecodeError as error:  # ValidationError, for a number out of range, is one too
        raise MalformedBodyError(f"The request body is not valid JSON: {error}.") from None
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(body, dict):
        raise MalformedBodyError("The request body is not a JSON object: send the fields between braces.")
    if is_deeper(data, MAX_DEPTH):
        raise _too_deep()
    if has_long_number(data):
        raise _too_long(body)
    return body


def check_amounts(data: bytes, max_values: int) -> None:
    """
    Raises:
        HTTPError: 413. A list or an object costs as much as many numbers, so they have a limit of their own.
    """
    max_containers = max(1, max_values // VALUES_PER_CONTAINER)
    if _num_marks(data) <= max_values and _num_containers(data) <= max_containers:
        return
    # Text may hold marks too: look outside of the strings. Each string is a value or a key.
    num_quotes = _unescaped(data).count(b'"')
    if num_quotes <= 2 * max_values + 2:
        structure = _outside_strings(data)
        if _num_marks(structure) <= max_values:
            if _num_containers(structure) <= max_containers:
                return
            what, limit = "lists and objects", f"an eighth of max_json_values = {max_values}"
            raise _too_many(max_containers, what, limit)
    raise _too_many(max_values, "JSON values and keys", f"max_json_values = {max_values}")


def is_deeper(data: bytes, depth: int) -> bool:
    """Whether valid JSON has lists and objects nested more than ``depth`` levels deep."""
    if _num_containers(data) <= depth:
        return False
    brackets = _outside_strings(data).translate(_BRACES_AS_BRACKETS, _NO_BRACKETS)
    # Each pass takes away what holds nothing, which is the innermost level of every branch.
    for _ in range(depth):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True


def has_long_number(data: bytes) -> bool:
    """Whether valid JSON holds a whole number that the frames to a child process cannot carry."""
    if b"0" * 19 not in data.translate(_DIGITS_AS_ZEROS):
        return False
    numbers = (found.group() for found in _LONG_NUMBER.finditer(_outside_strings(data)))
    return any(len(number) > 20 or not MIN_INT <= int(number) <= MAX_INT for number in numbers)


def _num_marks(data: bytes) -> int:
    """Values and keys, an empty container being one: an item is one comma or the opening bracket before it; an
    object's item has a colon more, for its key."""
    return data.count(b",") + data.count(b":") + _num_containers(data)


def _num_containers(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{")


def _unescaped(data: bytes) -> bytes:
    """Without escaped quotes, so that each quote that is left begins or ends a string."""
    return data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data


def _outside_strings(data: bytes) -> bytes:
    data, kept, inside = _unescaped(data), [], 0
    # In pieces, between which another thread can have the interpreter's lock.
    for start in range(0, len(data), PIECE_BYTES):
        parts = data[start : start + PIECE_BYTES].split(b'"')
        kept += parts[inside::2]
        inside = (inside + len(parts) - 1) % 2
    return b"".join(kept)


def _too_many(limit: int, what: str, setting: str) -> HTTPError:
    return HTTPError(
        413,
        f"The request body holds more than {limit} {what}: send fewer, or raise the server's limit ({setting}).",
        code="body_too_large",
    )


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
