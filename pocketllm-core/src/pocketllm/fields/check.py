"""The field table: what a server does with each field of an OpenAI-shaped request, and when it refuses one.

Types and bounds belong to the wire Structs of whoever speaks the protocol; the rows (:mod:`pocketllm.fields.table`)
hold the policy. A field is accepted only when somebody acts on it. A value that names what would happen anyway is
neutral and always accepted; any other value of a field that needs a feature nobody declares is refused by name.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from typing import Any

from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm.fields.table import BOTH, CHAT, FIELDS, NEVER, FieldRow
from pocketllm.fields.token_ids import are_token_ids, in_vocabulary
from pocketllm.types import Capabilities

MAX_SHOWN_CHARS = 80

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
        ConfigurationError: the value is not what this endpoint means by the field.
    """
    table = _BY_ENDPOINT[endpoint]
    for name, value in body.items():
        row = table.get(name)
        if row is None or not row.needs or capabilities.supports(row.needs):
            continue
        # 0 == False in Python, but false is no neutral penalty: the wire types have refused it by now.
        if not any(value == neutral for neutral in row.neutral):
            raise unsupported(name, value, row.instead, row.remedy)
    _check_logprobs(body, endpoint, capabilities)
    _check_stream_options(body, capabilities)
    if endpoint == CHAT:
        _check_tools(body, capabilities)
    _check_token_ids(body, capabilities.vocab_size)


def _check_logprobs(body: Mapping[str, Any], endpoint: str, capabilities: Capabilities) -> None:
    value = body.get("logprobs")
    wanted = value is True if endpoint == CHAT else value is not None
    if wanted and body.get("stream") and not capabilities.supports_streamed_logprobs:
        raise unsupported(
            "logprobs",
            value,
            "a streamed chunk carries the text of its token with no ranking beside it",
            'Send "stream" as false',
        )
    if endpoint == CHAT and body.get("top_logprobs") and not wanted:
        raise unsupported(
            "top_logprobs",
            body["top_logprobs"],
            "there is no ranking to take alternatives from unless the request asks for log probabilities",
            'Send "logprobs" as true',
        )


def _check_stream_options(body: Mapping[str, Any], capabilities: Capabilities) -> None:
    options = body.get("stream_options")
    if not isinstance(options, Mapping) or not body.get("stream") or capabilities.supports_streamed_usage:
        return
    for name in ("include_usage", "continuous_usage_stats"):
        if options.get(name):
            raise unsupported(
                f"stream_options.{name}",
                True,
                "a stream is delta chunks followed by [DONE], and none of them carries usage",
                "Leave it out, or ask for a response that is not streamed, which reports usage already",
            )


def _check_tools(body: Mapping[str, Any], capabilities: Capabilities) -> None:
    """What only constrained decoding can promise: a call, a certain call, arguments that fit their schema."""
    if capabilities.supports_structured_outputs:
        return
    choice = body.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise unsupported(
            "tool_choice",
            choice,
            "only constrained decoding holds a model to a call, and the engine does not declare it",
            'Send "tool_choice" as "auto" or "none"',
        )
    tools = body.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list | tuple) else ()):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and function.get("strict"):
            raise UnsupportedFeatureError(
                f'"tools[{index}].function.strict" = true is not supported by this server: only constrained decoding '
                "makes arguments fit their schema, and the engine does not declare it. Leave it out.",
                param="tools",
            )


def _check_token_ids(body: Mapping[str, Any], vocab_size: int) -> None:
    if vocab_size <= 0:
        return
    named: tuple[tuple[str, Collection[Any]], ...] = (
        *(("prompt", ids) for ids in _prompt_ids(body.get("prompt"))),
        ("stop_token_ids", body.get("stop_token_ids") or ()),
        ("logit_bias", body.get("logit_bias") or ()),
    )
    for name, ids in named:
        if in_vocabulary(ids, vocab_size):
            continue
        for item in ids:
            token = int(item) if isinstance(item, str) and item.isdecimal() and len(item) < 20 else item
            if isinstance(token, int) and not 0 <= token < vocab_size:
                raise ConfigurationError(
                    f'"{name}" holds the token id {token}, but this model\'s ids are 0 to {vocab_size - 1}. '
                    "Send ids of this model's own tokenizer.",
                    param=name,
                )


def _prompt_ids(prompt: Any) -> list[list[Any]]:
    """The lists of ids in a prompt."""
    if not isinstance(prompt, list):
        return []
    if are_token_ids(prompt):
        return [prompt]
    return [item for item in prompt if isinstance(item, list)]


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


def shown(value: Any) -> str:
    """``value`` as JSON for an error message, cut to a readable length."""
    # Cut before encoding, too: a caller's string may be megabytes long, and a list may hold as many values.
    value = value[:MAX_SHOWN_CHARS] if isinstance(value, str) else value
    text = ""
    for part in json.JSONEncoder(ensure_ascii=False, default=repr).iterencode(value):
        text += part
        if len(text) > MAX_SHOWN_CHARS:
            break
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 1] + "…"


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
        f"{shown(name)} is no field of this endpoint, and this server is strict about fields. {hint}Remove it.",
        param=name[:MAX_SHOWN_CHARS],
    )
