"""One call written as a JSON object: ``{"name": "f", "arguments": {...}}``, or ``parameters`` for ``arguments``.

The text of the arguments is passed on as the model wrote it, so numbers and order stay as they are. Arguments may be
missing or null (there are none), or a string that holds a JSON object. ``"type": "function"`` and ``id`` may stand
beside them; with any other key the object is not a call, since what it says would be lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from pocketllm.text.tool_calls.base import ParsedCall
from pocketllm.text.tool_calls.call_tail import CallSink
from pocketllm.text.tool_calls.scanner import SPACE, Malformed, Reading, TextScanner
from pocketllm.text.tool_calls.typing_rules import MAX_DEPTH, check_depth, refuse_constant, strict_json

_ROLE_OF_KEY = {"name": "name", "arguments": "arguments", "parameters": "arguments", "type": "type", "id": "id"}
_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING_STOP = re.compile(r'["\\]')
_SCALAR_STOP = re.compile(r"[^-+.0-9A-Za-z]")
_SPACES = re.compile(f"[{SPACE}]*")
_DECODER = json.JSONDecoder(parse_constant=refuse_constant)


def parse_call(text: str, start: int, accepts: Callable[[str], bool]) -> tuple[ParsedCall, int]:
    """Read the call that begins at ``start``; return it and where it ends. The reference of :func:`read_call`.

    Raises:
        Malformed: there is no such object, or ``accepts`` refuses its name.
    """
    values: dict[str, tuple[Any, str]] = {}
    position = _behind("{", text, start)
    while True:
        key, position = _decode(text, position)
        role = _new_role(key, values)
        begin = _behind(":", text, position)
        value, position = _decode(text, begin)
        values[role] = (value, text[begin:position])
        position = _after_space(text, position)
        if text.startswith("}", position):
            break
        position = _behind(",", text, position)
    if "name" not in values:
        raise Malformed("no name")
    _check_type(values.get("type", ("function", ""))[0])
    name = _checked_name(values["name"][0], accepts)
    return ParsedCall(name, _arguments(*values.get("arguments", (None, "")))), position + 1


def read_call(scanner: TextScanner, sink: CallSink, accepts: Callable[[str], bool]) -> Reading[None]:
    """Read the call that begins here. Arguments behind the name are reported while they arrive."""
    name: str | None = None
    waiting: str | None = None
    roles: dict[str, object] = {}
    yield from scanner.expect("{")
    while True:
        yield from scanner.take_space()
        role = _new_role((yield from _string(scanner)), roles)
        roles[role] = None
        yield from scanner.take_space()
        yield from scanner.expect(":")
        yield from scanner.take_space()
        if role == "arguments" and name is not None and (yield from scanner.peek_char()) == "{":
            yield from _value(scanner, sink.arguments)
        else:
            value, raw = yield from _value(scanner)
            if role == "name":
                name = _checked_name(value, accepts)
                sink.begin(name)
            elif role == "type":
                _check_type(value)
            elif role == "arguments":
                waiting = _arguments(value, raw)
            if name is not None and waiting is not None:
                sink.arguments(waiting)
                waiting = None
        yield from scanner.take_space()
        if (yield from scanner.expect(",", "}")) == "}":
            break
    if name is None:
        raise Malformed("no name")
    if "arguments" not in roles:
        sink.arguments("{}")
    sink.end()


def _string(scanner: TextScanner) -> Reading[str]:
    if (yield from scanner.peek_char()) != '"':
        raise Malformed("expected a key")
    value, _ = yield from _value(scanner)
    assert isinstance(value, str)
    return value


def _value(scanner: TextScanner, also: Callable[[str], None] | None = None) -> Reading[tuple[Any, str]]:
    """Any JSON value and its text, which is passed on to ``also`` before it is known to be valid."""
    pieces: list[str] = []

    def emit(text: str) -> None:
        pieces.append(text)
        if also is not None:
            also(text)

    first = yield from scanner.peek_char()
    if first == '"':
        yield from scanner.take_char(emit)
        yield from _rest_of_string(scanner, emit)
    elif first in "{[":
        yield from _container(scanner, emit)
    else:
        emit((yield from scanner.take_before(_SCALAR_STOP)))
    raw = "".join(pieces)
    try:
        return strict_json(raw), raw
    except ValueError as error:
        raise Malformed(str(error)) from None


def _container(scanner: TextScanner, emit: Callable[[str], None]) -> Reading[None]:
    depth = 0
    while True:
        char = yield from scanner.take_through(_STRUCTURE, emit)
        if char == '"':
            yield from _rest_of_string(scanner, emit)
        elif char in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise Malformed("nested too deep")
        else:
            depth -= 1
            if not depth:
                return


def _rest_of_string(scanner: TextScanner, emit: Callable[[str], None]) -> Reading[None]:
    while (yield from scanner.take_through(_STRING_STOP, emit)) == "\\":
        yield from scanner.take_char(emit)


def _new_role(key: object, seen: dict[str, Any]) -> str:
    role = _ROLE_OF_KEY.get(key) if isinstance(key, str) else None
    if role is None or role in seen:
        raise Malformed(f"the key {key!r} is unknown or given twice")
    return role


def _checked_name(name: object, accepts: Callable[[str], bool]) -> str:
    if not isinstance(name, str) or not name or not accepts(name):
        raise Malformed("the name is not a function's")
    return name


def _check_type(value: object) -> None:
    if value != "function":
        raise Malformed("not a function call")


def _arguments(value: object, raw: str) -> str:
    """The object's text, from the value of ``arguments`` and how it was written."""
    if value is None:
        return "{}"
    if isinstance(value, str):
        raw = value.strip(SPACE)
        try:
            value = strict_json(raw)
        except ValueError:
            raise Malformed("the arguments are a string without a JSON object in it") from None
    if not isinstance(value, dict):
        raise Malformed("the arguments are not a JSON object")
    return raw


def _decode(text: str, position: int) -> tuple[Any, int]:
    try:
        value, end = _DECODER.raw_decode(text, position)
        check_depth(text[position:end])
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from None
    return value, end


def _after_space(text: str, position: int) -> int:
    found = _SPACES.match(text, position)
    assert found is not None
    return found.end()


def _behind(mark: str, text: str, position: int) -> int:
    """Where the text continues behind white space, the mark, and white space."""
    position = _after_space(text, position)
    if not text.startswith(mark, position):
        raise Malformed(f"expected {mark}")
    return _after_space(text, position + len(mark))
