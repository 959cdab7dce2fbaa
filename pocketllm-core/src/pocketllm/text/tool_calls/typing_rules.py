"""Gives the text of an argument the type that the request's schema declares for it.

Values become JSON text, not Python objects, so a number keeps every digit the model wrote. Text that does not fit its
type stays the string it is.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from pocketllm.text.tool_calls.base import Tools
from pocketllm.text.tool_calls.scanner import SPACE

MAX_DEPTH = 128
"""Levels of nesting in a JSON value; more is not read as JSON."""

_MAX_REFERENCES = 16
_MAX_DIGITS = 4300  # what Python's own json reads back; longer integers stay text
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_NULLS = ("null", "None")
_BOOLEANS = {"true": "true", "True": "true", "false": "false", "False": "false"}
_STRINGS_AND_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
_STEP = {"{": 1, "[": 1, "}": -1, "]": -1}
_JSON_TYPES = frozenset({"string", "integer", "number", "boolean", "object", "array"})


class Declared(NamedTuple):
    """The types a value may have, in the schema's order, without null; none means unknown."""

    types: tuple[str, ...] = ()
    nullable: bool = False

    @property
    def is_string(self) -> bool:
        """Whether every text is a string, so that it can be passed on before it is complete."""
        return not self.nullable and self.types[:1] in ((), ("string",))


class ToolSchemas:
    """The parameter schemas of a request's tools, by name; the first of two with the same name counts."""

    def __init__(self, tools: Tools) -> None:
        self._roots: dict[str, Mapping[str, Any]] = {}
        for tool in tools or ():
            function = tool.get("function", tool)
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                parameters = function.get("parameters")
                self._roots.setdefault(function["name"], parameters if isinstance(parameters, Mapping) else {})

    def has_tool(self, name: str) -> bool:
        return name in self._roots

    def has_parameter(self, tool: str, key: str) -> bool:
        return key in self._properties(tool)

    def declared(self, tool: str, key: str) -> Declared:
        """What the schema says about one parameter; nothing when tool or parameter is unknown."""
        root = self._roots.get(tool, {})
        found = list(dict.fromkeys(_types(self._properties(tool).get(key), root, 0)))
        return Declared(tuple(name for name in found if name != "null"), "null" in found)

    def _properties(self, tool: str) -> Mapping[str, Any]:
        root = self._roots.get(tool, {})
        properties = _resolved(root, root).get("properties")
        return properties if isinstance(properties, Mapping) else {}


def argument_json(text: str, declared: Declared) -> str:
    """JSON text of an argument written as ``text``.

    - null (also ``None``) if the schema allows it;
    - otherwise the first declared type that the text fits: integers and numbers as JSON writes them, ``true`` and
      ``false`` (also capitalised), JSON objects and arrays, all without regard to white space around them;
    - otherwise, and for string and unknown types, the characters as they are. NaN and infinities are not JSON.
    """
    stripped = text.strip(SPACE)
    if declared.nullable and stripped in _NULLS:
        return "null"
    for name in declared.types:
        if name == "string":
            break
        if (value := _CONVERT[name](stripped)) is not None:
            return value
    return json_string(text)


def json_string(text: str) -> str:
    """``text`` as a JSON string, unescaped where JSON allows it."""
    return json.dumps(text, ensure_ascii=False)


def strict_json(text: str) -> Any:
    """The value of a JSON text; raises ValueError also for NaN, infinities and more than ``MAX_DEPTH`` levels."""
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None
    check_depth(text)
    return value


def check_depth(text: str) -> None:
    """Raise ValueError if arrays and objects in a valid JSON text are nested more than ``MAX_DEPTH`` levels deep."""
    depth = 0
    for found in _STRINGS_AND_BRACKETS.finditer(text):
        depth += _STEP.get(found[0], 0)
        if depth > MAX_DEPTH:
            raise ValueError("nested too deep")


def refuse_constant(name: str) -> NoReturn:
    """For ``parse_constant``: Python reads NaN and Infinity, which JSON has not."""
    raise ValueError(f"{name} is not JSON")


def _integer(text: str) -> str | None:
    return text if len(text) <= _MAX_DIGITS and _INTEGER.fullmatch(text) else None


def _number(text: str) -> str | None:
    if len(text) > _MAX_DIGITS or not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        return None
    return text


def _boolean(text: str) -> str | None:
    return _BOOLEANS.get(text)


def _object(text: str) -> str | None:
    return _container(text, dict)


def _array(text: str) -> str | None:
    return _container(text, list)


def _container(text: str, kind: type) -> str | None:
    try:
        return text if isinstance(strict_json(text), kind) else None
    except ValueError:
        return None


_CONVERT = {"integer": _integer, "number": _number, "boolean": _boolean, "object": _object, "array": _array}


def _types(schema: object, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Types a schema admits, null included, in its order; duplicates may occur."""
    if not isinstance(schema, Mapping) or depth > _MAX_REFERENCES:
        return
    schema = _resolved(schema, root)
    if schema.get("nullable") is True:
        yield "null"
    kind = schema.get("type")
    if kind is not None:
        for name in kind if isinstance(kind, list) else [kind]:
            if name == "null" or (isinstance(name, str) and name in _JSON_TYPES):
                yield name
        return
    for keyword in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(keyword)
        # Several branches of allOf would have to be intersected; schema makers write one, around a reference.
        if isinstance(branches, list) and (keyword != "allOf" or len(branches) == 1):
            for branch in branches:
                yield from _types(branch, root, depth + 1)
            return
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        yield from map(_type_of, values)


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "object" if isinstance(value, Mapping) else "array"


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow ``$ref`` inside the document; one that leads nowhere or round in circles gives an empty schema."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref")
        if reference is None:
            return schema
        target: object = root
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return {}
        for part in reference.split("/")[1:]:
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping):
            return {}
        schema = target
    return {}
