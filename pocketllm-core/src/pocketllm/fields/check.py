"""The judgement of a request body: what a server does with each field, and when it refuses one.

Types and bounds belong to the wire Structs of the server; the rows (:mod:`pocketllm.fields.table`) hold the policy. A
field is accepted only when somebody acts on it. A value that names what would happen anyway is neutral and always
accepted; any other value of a field that needs a feature nobody declares is refused by name.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from pocketllm.errors import MAX_SHOWN_CHARS, ConfigurationError, UnsupportedFeatureError, shown
from pocketllm.fields.policy import NEVER, STREAM_NEEDS, needs_of
from pocketllm.fields.table import BOTH, CHAT, FIELDS, FieldRow
from pocketllm.types import Capabilities

_BY_ENDPOINT: dict[str, dict[str, FieldRow]] = {
    endpoint: {row.name: row for row in FIELDS if endpoint in row.endpoints} for endpoint in BOTH
}


def rows(endpoint: str) -> Mapping[str, FieldRow]:
    """The table of one endpoint, :data:`CHAT` or :data:`COMPLETIONS`, by field name."""
    return _BY_ENDPOINT[endpoint]


def check_fields(body: Mapping[str, Any], endpoint: str, capabilities: Capabilities) -> None:
    """Refuse the first field of a decoded request whose value would change the output and is not acted upon.

    ``body`` holds the fields that were set (null is absent), with their types checked. Fields without a row pass.

    Raises:
        UnsupportedFeatureError: ``param`` names the field.
    """
    table = _BY_ENDPOINT[endpoint]
    for name, value in body.items():
        row = table.get(name)
        # 0 == False in Python, but false is not a neutral penalty: the wire types have refused it by now.
        if row is None or not row.needs or value in row.neutral:
            continue
        if not capabilities.supports(row.needs):
            raise unsupported(name, value, row.instead, row.remedy)
        for need in needs_of(name)[1:]:
            if value not in need.neutral and not capabilities.supports(need.capability):
                raise unsupported(name, value, need.instead, need.remedy)
    if body.get("stream"):
        _check_stream(body, table, capabilities)
    if endpoint == CHAT:
        _check_ranking(body)
        _check_strict_tools(body, capabilities)


def _check_stream(body: Mapping[str, Any], table: Mapping[str, FieldRow], capabilities: Capabilities) -> None:
    """What the chunks of a stream may not be able to carry."""
    for need in STREAM_NEEDS:
        outer, _, inner = need.field.partition(".")
        value, neutral = body.get(outer), table[outer].neutral
        if inner:
            value, neutral = value.get(inner) if isinstance(value, Mapping) else None, need.neutral
        if value is not None and value not in neutral and not capabilities.supports(need.capability):
            raise unsupported(need.field, value, need.instead, need.remedy)


def _check_ranking(body: Mapping[str, Any]) -> None:
    if body.get("top_logprobs") and body.get("logprobs") is not True:
        raise unsupported(
            "top_logprobs",
            body["top_logprobs"],
            "there is no ranking to take alternatives from unless the request asks for log probabilities",
            'Send "logprobs" as true',
        )


def _check_strict_tools(body: Mapping[str, Any], capabilities: Capabilities) -> None:
    """Only constrained decoding makes arguments fit their schema."""
    if capabilities.supports_structured_outputs:
        return
    tools = body.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list | tuple) else ()):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and function.get("strict"):
            raise UnsupportedFeatureError(
                f'"tools[{index}].function.strict" = true is not supported by this server: only constrained decoding '
                "makes arguments fit their schema, and the engine does not declare it. Leave it out.",
                param="tools",
            )


def supported_fields(endpoint: str, capabilities: Capabilities) -> list[str]:
    """Names of the fields that are acted on, in the table's order."""
    return [
        row.name
        for row in _BY_ENDPOINT[endpoint].values()
        if not row.inert and (not row.needs or capabilities.supports(row.needs))
    ]


def describe(row: FieldRow) -> tuple[str, str, str, str]:
    """One line of the manual: field, endpoints, when it is served, what it does."""
    if row.inert:
        served = "accepted, inert"
    elif not row.needs:
        served = "always"
    else:
        neutral = " or ".join(json.dumps(value) for value in row.neutral)
        served = "never" if row.needs == NEVER else row.needs
        if neutral:
            served += f"; else only {neutral}" if row.needs != NEVER else f", but for {neutral}"
    return row.name, ", ".join(row.endpoints), served, row.doc


def unsupported(name: str, value: Any, instead: str, remedy: str) -> UnsupportedFeatureError:
    """The refusal of one value, in the one wording that all refusals have."""
    return UnsupportedFeatureError(
        f'"{name}" = {shown(value)} is not supported by this server: {instead}. {remedy}.', param=name
    )


def unknown_field(name: str, endpoint: str) -> ConfigurationError:
    """The refusal of a field that nobody documents, in strict mode; names the nearest one that exists."""
    near = difflib.get_close_matches(name[:MAX_SHOWN_CHARS], _BY_ENDPOINT[endpoint], n=1)
    hint = f'Did you mean "{near[0]}"? ' if near else ""
    return ConfigurationError(
        f"{shown(name)} is not a field of this endpoint, and this server is strict about fields. {hint}Remove it.",
        param=name[:MAX_SHOWN_CHARS],
    )
