"""Reading Lark text just far enough to find its string literals and the schemas inside it."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

# Strings, expressions, comments, and the two places where something else begins.
_PART = re.compile(
    r"""(?P<string>"(?:[^"\\\n]|\\.)*"i?)
      | (?P<regex>/(?![/*])(?:[^/\\\n]|\\.)*/[a-z]*)
      | (?P<comment>//[^\n]*|\#[^\n]*)
      | (?P<json>%json(?![A-Za-z0-9_]))
      | (?P<options>%(?:llguidance|regex)(?![A-Za-z0-9_]))
      | (?P<attributes>^[ \t]*[A-Za-z_][A-Za-z0-9_-]*[ \t]*\[[^\]\n]*\][ \t]*:)""",
    re.VERBOSE | re.MULTILINE,
)


class LarkParts(msgspec.Struct, frozen=True):
    """What was found, in order.

    Attributes:
        literals: the text of string literals.
        schemas: (start, end, value) of the JSON after each ``%json``.
        attributes: the bracketed options of rules, as written.
    """

    literals: list[str]
    schemas: list[tuple[int, int, Any]]
    attributes: list[str]


def lark_parts(text: str) -> LarkParts:
    """Raises ValueError where ``%json`` is not followed by JSON; the message says at which character."""
    parts = LarkParts([], [], [])
    position = 0
    while True:
        found = _PART.search(text, position)
        if found is None:
            return parts
        position = found.end()
        kind = found.lastgroup
        if kind == "string":
            parts.literals.append(_literal(found.group()))
        elif kind == "attributes":
            parts.attributes.append(found.group())
        elif kind in ("json", "options"):
            start, end, value = _json_at(text, position)
            if kind == "json":
                parts.schemas.append((start, end, value))
            position = end


def _json_at(text: str, position: int) -> tuple[int, int, Any]:
    start = position + len(text[position:]) - len(text[position:].lstrip())
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"what follows %json at character {start} is not JSON: {error}") from None
    return start, end, value


def _literal(source: str) -> str:
    inner = source.removesuffix("i")
    try:
        return str(json.loads(inner))
    except json.JSONDecodeError:
        # An escape that JSON lacks; the matcher reads the literal itself, this is only to find token surfaces.
        return inner[1:-1]


def quoted(text: str) -> str:
    """``text`` as a Lark string literal."""
    return json.dumps(text, ensure_ascii=False)
