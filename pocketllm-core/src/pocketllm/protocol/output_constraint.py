"""The fields that restrict an answer, ``response_format`` and ``structured_outputs``, as a constraint."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from pocketllm.errors import ConfigurationError, shown
from pocketllm.types import Constraint

RESPONSE_FORMATS = ("text", "json_object", "json_schema")
STRUCTURES = ("json", "json_object", "regex", "choice", "grammar")


def checked_response_format(value: object) -> dict[str, Any]:
    """A copy of OpenAI's ``response_format``.

    Raises:
        ConfigurationError: its type is unknown, or its schema is missing.
    """
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or kind not in RESPONSE_FORMATS:
        raise ConfigurationError(
            f"response_format.type = {shown(kind)} is unknown: use {', '.join(RESPONSE_FORMATS)}.",
            param="response_format",
        )
    if kind == "json_schema":
        outer = value.get("json_schema")
        if not isinstance(outer, Mapping) or not isinstance(outer.get("schema"), Mapping | bool):
            raise ConfigurationError("response_format.json_schema.schema is missing.", param="response_format")
    return copy.deepcopy(dict(value))


def constraint_of(body: Mapping[str, Any]) -> Constraint | None:
    """The constraint that ``structured_outputs`` asks for; None when it is absent or empty.

    Raises:
        ConfigurationError: it is malformed, asks for more than one structure, or stands beside another restriction.
    """
    value = body.get("structured_outputs")
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise _wrong(f"structured_outputs is {type(value).__name__}, not an object.")
    given = {key: item for key, item in value.items() if item is not None and item is not False}
    unknown = sorted(set(given) - set(STRUCTURES), key=str)
    if unknown:
        raise _wrong(f"structured_outputs has {shown(unknown[0])}: use one of {', '.join(STRUCTURES)}.")
    if not given:
        return None
    if len(given) > 1:
        raise _wrong(f"structured_outputs has {' and '.join(given)}: only one structure can hold an answer.")
    response_format = body.get("response_format")
    if isinstance(response_format, Mapping) and response_format.get("type", "text") != "text":
        raise _wrong("structured_outputs and response_format both restrict the answer: send one of them.")
    ((kind, item),) = given.items()
    return _constraint(kind, item)


def _constraint(kind: str, item: object) -> Constraint:
    if kind == "json_object":
        if item is not True:
            raise _wrong(f"structured_outputs.json_object = {shown(item)} is not true or false.")
        return Constraint(kind="json_object", text="")
    if kind == "choice":
        if not isinstance(item, list | tuple) or not item or not all(isinstance(each, str) and each for each in item):
            raise _wrong("structured_outputs.choice must be a non-empty list of non-empty strings.")
        return Constraint(kind="choice", text=msgspec.json.encode(item).decode())
    if kind == "json":
        return Constraint(kind="json_schema", text=_schema_text(item))
    if not isinstance(item, str) or not item:
        raise _wrong(f"structured_outputs.{kind} must be a non-empty string.")
    return Constraint(kind=kind, text=item)


def _schema_text(item: object) -> str:
    """A schema as JSON text; some clients send it as text already."""
    try:
        schema = msgspec.json.decode(item) if isinstance(item, str) else item
        if isinstance(schema, Mapping | bool):
            return msgspec.json.encode(schema).decode()
    except (msgspec.DecodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _wrong(f"structured_outputs.json is not JSON: {error}.") from None
    raise _wrong("structured_outputs.json must be a JSON schema: an object, or its text.")


def _wrong(message: str) -> ConfigurationError:
    return ConfigurationError(message, param="structured_outputs")
