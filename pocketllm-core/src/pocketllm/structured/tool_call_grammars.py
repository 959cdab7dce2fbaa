"""Tool choice as a grammar: which calls a completion must or may consist of.

One constraint per request, from the tools' own schemas, in the syntax the checkpoint was trained on. Each grammar
yields only texts that the parser of that syntax reads as calls of the given tools.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pocketllm.errors import ConfigurationError
from pocketllm.structured.lark_text import quoted
from pocketllm.structured.parameter_grammar import parameter_rules
from pocketllm.structured.refusal import SchemaRefusedError
from pocketllm.structured.schema_subset import rewrite_schema
from pocketllm.types import Constraint

_PARAM = "tools"


class ToolCallMode(enum.StrEnum):
    """What ``tool_choice`` asks for."""

    AUTO = "auto"
    """Text without a call, or text and then calls."""
    REQUIRED = "required"
    """At least one call, and nothing else."""
    NAMED = "named"
    """One call of the tool that is named, and nothing else."""


class _JsonSyntax(msgspec.Struct, frozen=True):
    """Calls that are JSON objects between two tags."""

    trigger: str
    before: str
    after: str
    between: str
    arguments_key: str


class _TaggedSyntax(msgspec.Struct, frozen=True):
    """Calls whose parameters are elements of their own. ``{name}`` and ``{key}`` stand for names."""

    trigger: str
    lead: str
    open_all: str
    before: str
    after: str
    between: str
    close_all: str
    text_parameter: str
    json_parameter: str
    close_parameter: str
    between_parameters: str


_JSON_SYNTAXES = {
    "hermes_json": _JsonSyntax("<tool_call>", "<tool_call>\n", "\n</tool_call>", "\n", "arguments"),
    "llama3_json": _JsonSyntax("{", "", "", "; ", "parameters"),
}
_TAGGED_SYNTAXES = {
    "qwen_xml": _TaggedSyntax(
        trigger="<tool_call>",
        lead="",
        open_all="",
        before="<tool_call>\n<function={name}>\n",
        after="</function>\n</tool_call>",
        between="\n",
        close_all="",
        text_parameter="<parameter={key}>\n",
        json_parameter="<parameter={key}>\n",
        close_parameter="\n</parameter>\n",
        between_parameters="",
    ),
    "deepseek_dsml": _TaggedSyntax(
        trigger="<｜DSML｜tool_calls>",
        lead="\n\n",
        open_all="<｜DSML｜tool_calls>\n",
        before='<｜DSML｜invoke name="{name}">\n',
        after="\n</｜DSML｜invoke>",
        between="\n",
        close_all="\n</｜DSML｜tool_calls>",
        text_parameter='<｜DSML｜parameter name="{key}" string="true">',
        json_parameter='<｜DSML｜parameter name="{key}" string="false">',
        close_parameter="</｜DSML｜parameter>",
        between_parameters="\n",
    ),
}
TOOL_CALL_SYNTAXES = (*_JSON_SYNTAXES, *_TAGGED_SYNTAXES)


def tool_call_constraint(
    syntax_name: str,
    tools: Sequence[Mapping[str, Any]],
    *,
    mode: ToolCallMode | str,
    name: str | None = None,
    parallel: bool = True,
) -> Constraint:
    """The constraint that makes a completion obey ``tool_choice``, ``parallel_tool_calls`` and strict tools.

    A tool marked ``strict`` has its schema enforced whole. Any other has as much of it enforced as can be: where its
    schema holds something that cannot, its arguments are any object (or, in the tagged syntaxes, any text).

    Args:
        syntax_name: one of :data:`TOOL_CALL_SYNTAXES`.
        tools: the request's tools in OpenAI's shape.
        mode: see :class:`ToolCallMode`.
        name: the tool, for mode "named".
        parallel: more than one call may be made.

    Raises:
        ConfigurationError: no tool, an unknown syntax or tool name, or a strict schema that cannot be enforced
            (``param`` is then "tools"; the message has the tool's name and a JSON pointer).
    """
    mode = ToolCallMode(mode)
    if syntax_name not in TOOL_CALL_SYNTAXES:
        raise ConfigurationError(
            f"tool calls in the syntax {syntax_name!r} cannot be enforced; known are {', '.join(TOOL_CALL_SYNTAXES)}.",
            param="tool_choice",
        )
    functions = [_function(tool) for tool in tools]
    if mode is ToolCallMode.NAMED:
        functions = [function for function in functions if function["name"] == name]
        parallel = False
    if not functions:
        wanted = f"no tool is named {name!r}" if mode is ToolCallMode.NAMED else "the request has no tools"
        raise ConfigurationError(f"tool_choice = {mode.value!r}: {wanted}.", param="tool_choice")
    if syntax_name in _JSON_SYNTAXES:
        rules = _json_rules(_JSON_SYNTAXES[syntax_name], functions, mode, parallel)
    else:
        rules = _tagged_rules(_TAGGED_SYNTAXES[syntax_name], functions, mode, parallel)
    return Constraint(kind="grammar", text="\n".join(rules) + "\n")


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function", tool)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ConfigurationError("tools: every tool has a function with a name.", param=_PARAM)
    return dict(function)


def _parameters(function: dict[str, Any]) -> dict[str, Any]:
    """The schema of the arguments; of a tool that declares none, an object without members."""
    parameters = function.get("parameters")
    if not parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(parameters, Mapping):
        raise ConfigurationError(f"tools: the parameters of {function['name']!r} are not a schema.", param=_PARAM)
    return dict(parameters)


def _strict_error(function: dict[str, Any], error: SchemaRefusedError) -> SchemaRefusedError:
    return SchemaRefusedError(
        error.pointer, f"(parameters of the strict tool {function['name']!r}) {error.reason}", param=_PARAM
    )


# -- JSON ---------------------------------------------------------------------------------------------------------


def _json_rules(syntax: _JsonSyntax, functions: list[dict[str, Any]], mode: ToolCallMode, parallel: bool) -> list[str]:
    calls = []
    for function in functions:
        schema = _json_arguments(function)
        definitions = schema.pop("$defs", {})
        calls.append((function["name"], schema, definitions))
    # One schema for all of them: alternatives that begin alike are then told apart by the name.
    merged: dict[str, Any] = {}
    options = []
    for index, (name, schema, definitions) in enumerate(calls):
        renamed = _renamed({"schema": schema, "definitions": definitions}, f"t{index}_")
        merged.update({f"t{index}_{key}": value for key, value in renamed["definitions"].items()})
        properties = {"name": {"const": name}, syntax.arguments_key: renamed["schema"]}
        options.append(
            {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
        )
    document = {"anyOf": options, **({"$defs": merged} if merged else {})}
    body = f"%json {msgspec.json.encode(document).decode()}"
    call = " ".join(filter(None, (_literal(syntax.before), "body", _literal(syntax.after))))
    more = f" ({quoted(syntax.between)} call)*" if parallel else ""
    rules = [f"call: {call}", f"body: {body}"]
    if mode is not ToolCallMode.AUTO:
        return [f"start: call{more}", *rules]
    if not syntax.before:
        # Nothing but the first character tells a call from text.
        return [f"start: TEXT | call{more}", r"TEXT: /([\x20\t\r\n]*[^{\x20\t\r\n](?s:.*))?/", *rules]
    rest = " ".join(
        filter(None, (_literal(syntax.before.removeprefix(syntax.trigger)), "body", _literal(syntax.after)))
    )
    return [*_auto_start(syntax.trigger, f"{rest}{more}"), *rules]


def _json_arguments(function: dict[str, Any]) -> dict[str, Any]:
    try:
        rewritten = rewrite_schema(_parameters(function), param=_PARAM)
    except SchemaRefusedError as error:
        if function.get("strict"):
            raise _strict_error(function, error) from None
        return {"type": "object"}
    return rewritten.document()


def _renamed(value: Any, prefix: str) -> Any:
    """``value`` with the references between definitions of one tool made distinct from another's."""
    if isinstance(value, dict):
        return {
            key: f"#/$defs/{prefix}{inner.removeprefix('#/$defs/')}"
            if key == "$ref" and isinstance(inner, str) and inner.startswith("#/$defs/")
            else (inner if key in ("const", "enum") else _renamed(inner, prefix))
            for key, inner in value.items()
        }
    return [_renamed(inner, prefix) for inner in value] if isinstance(value, list) else value


def _literal(text: str) -> str:
    return quoted(text) if text else ""


def _auto_start(trigger: str, rest: str) -> list[str]:
    """Text that never holds the trigger, or text up to it and then ``rest``."""
    escaped = _in_expression(trigger)
    return [
        f"start: FREE | head {rest}",
        f"head[lazy]: /(?s:.*){escaped}/",
        f"FREE: /(?s:.*)/ & ~/(?s:.*){escaped}(?s:.*)/",
    ]


def _in_expression(text: str) -> str:
    return "".join("\\" + char if char in "\\.+*?()|[]{}^$#&-~/" else char for char in text)


# -- tags ---------------------------------------------------------------------------------------------------------


def _tagged_rules(
    syntax: _TaggedSyntax, functions: list[dict[str, Any]], mode: ToolCallMode, parallel: bool
) -> list[str]:
    names, rules = [], []
    for index, function in enumerate(functions):
        rule = f"call{index}"
        names.append(rule)
        parameters, extra = _parameter_rules(syntax, function, rule)
        opening = syntax.before.format(name=function["name"])
        rules.append(f"{rule}: {' '.join(filter(None, (quoted(opening), parameters, quoted(syntax.after))))}")
        rules.extend(extra)
    rules.append(f"call: {' | '.join(names)}")
    more = f" ({quoted(syntax.between)} call)*" if parallel else ""
    close = f" {quoted(syntax.close_all)}" if syntax.close_all else ""
    if mode is not ToolCallMode.AUTO:
        opening = f"{quoted(syntax.open_all)} " if syntax.open_all else ""
        lead = f"{quoted(syntax.lead)}? " if syntax.lead else ""
        return [f"start: {lead}{opening}call{more}{close}", *rules]
    if syntax.open_all:
        rest = f"{quoted(syntax.open_all.removeprefix(syntax.trigger))} call{more}{close}"
        return [*_auto_start(syntax.trigger, rest), *rules]
    # The trigger is the beginning of the first call: its rules come once more, without it.
    first_names = []
    for index, function in enumerate(functions):
        rule = f"first{index}"
        first_names.append(rule)
        parameters, extra = _parameter_rules(syntax, function, rule)
        opening = syntax.before.format(name=function["name"]).removeprefix(syntax.trigger)
        rules.append(f"{rule}: {' '.join(filter(None, (quoted(opening), parameters, quoted(syntax.after))))}")
        rules.extend(extra)
    return [*_auto_start(syntax.trigger, f"({' | '.join(first_names)}){more}"), *rules]


def _parameter_rules(syntax: _TaggedSyntax, function: dict[str, Any], rule: str) -> tuple[str, list[str]]:
    try:
        return parameter_rules(
            _parameters(function),
            prefix=rule,
            text_opening=syntax.text_parameter,
            json_opening=syntax.json_parameter,
            closing=syntax.close_parameter,
            between=syntax.between_parameters,
            strict=bool(function.get("strict")),
        )
    except SchemaRefusedError as error:
        raise _strict_error(function, error) from None
