"""Calls as DeepSeek V3.2 and V4 write them, in DSML::

    <｜DSML｜tool_calls>
    <｜DSML｜invoke name="NAME">
    <｜DSML｜parameter name="KEY" string="true">raw text</｜DSML｜parameter>
    <｜DSML｜parameter name="KEY" string="false">JSON</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜tool_calls>

The tag around all calls is ``function_calls`` in V3.2. The model says whether a value is a string; a value that it
calls JSON and that is not stays the text it is. :func:`render_calls` is the way back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pocketllm.text.tool_calls.argument_writer import ArgumentWriter, join_arguments
from pocketllm.text.tool_calls.base import ParsedCall, ParsedCalls, Tools
from pocketllm.text.tool_calls.call_tail import CallSink, TailSyntax
from pocketllm.text.tool_calls.scanner import SPACE, Malformed, Reading, TextScanner
from pocketllm.text.tool_calls.typing_rules import ToolSchemas, json_string, strict_json

DSML = "｜DSML｜"
TAIL_TAGS = ("tool_calls", "function_calls")
INVOKE, INVOKE_END = f"<{DSML}invoke", f"</{DSML}invoke>"
PARAMETER, PARAMETER_END = f"<{DSML}parameter", f"</{DSML}parameter>"

# Keys under which the model sometimes writes the whole object of the arguments, as if it were one parameter.
WRAPPERS = ("arguments", "input")

_TAG_STOP = re.compile("[<>]")
_INVOKE_ATTRIBUTES = re.compile(r'\s+name="([^"<>\n]+)"\s*')
_PARAMETER_ATTRIBUTES = re.compile(r'\s+name="([^"<>\n]+)"\s+string="(true|false)"\s*')
_TAIL_OPEN = re.compile(f"<{DSML}(tool_calls|function_calls)>")
_INVOKE_OPEN = re.compile(rf"[{SPACE}]*{INVOKE}{_INVOKE_ATTRIBUTES.pattern}>")
_PARAMETER_WHOLE = re.compile(rf"[{SPACE}]*{PARAMETER}{_PARAMETER_ATTRIBUTES.pattern}>(.*?){PARAMETER_END}", re.DOTALL)
_INVOKE_CLOSE = re.compile(rf"[{SPACE}]*{INVOKE_END}")


class DeepSeekDsml(TailSyntax):
    """The syntax of DeepSeek V3.2 and V4."""

    name = "deepseek_dsml"
    special_texts = (DSML,)
    marks = tuple(f"<{DSML}{tag}>" for tag in TAIL_TAGS)

    def recognises(self, template_source: str | None, model_type: str) -> bool:
        return model_type == "deepseek_v4" or (template_source is not None and DSML in template_source)

    def kept_space(self, space: str) -> str:
        # Exactly what rendering puts there, so that a conversation sent back renders to the same text.
        return space.removesuffix("\n").removesuffix("\n")

    def parse(self, text: str, tools: Tools) -> ParsedCalls | None:
        schemas = ToolSchemas(tools)
        tail = _TAIL_OPEN.search(text)
        if tail is None:
            return None
        position = tail.end()
        calls = []
        while opening := _INVOKE_OPEN.match(text, position):
            name, position = opening[1], opening.end()
            values: dict[str, tuple[str, str]] = {}  # key to how it is marked and written
            while parameter := _PARAMETER_WHOLE.match(text, position):
                key, is_string, raw = parameter.groups()
                if key in values:
                    return None
                values[key] = (is_string, raw)
                position = parameter.end()
            closing = _INVOKE_CLOSE.match(text, position)
            if closing is None:
                return None
            position = closing.end()
            calls.append(ParsedCall(name, _whole_arguments(name, values, schemas)))
        if not calls or not re.compile(rf"[{SPACE}]*</{DSML}{tail[1]}>[{SPACE}]*").fullmatch(text, position):
            return None
        return ParsedCalls(self.content_before(text, tail.start()), tuple(calls))

    def read(self, scanner: TextScanner, sink: CallSink, schemas: ToolSchemas) -> Reading[None]:
        opening = yield from scanner.expect(*self.marks)
        tail_end = opening.replace("<", "</")
        yield from scanner.take_space()
        yield from scanner.expect(INVOKE)
        while True:
            yield from _read_call(scanner, sink, schemas)
            yield from scanner.take_space()
            if (yield from scanner.expect(INVOKE, tail_end)) == tail_end:
                break
        yield from scanner.take_space()
        if not (yield from scanner.at_end()):
            raise Malformed("there is text behind the calls")


def render_calls(calls: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """The tail for (name, arguments) pairs, as the model was trained to write it; content goes in front of it."""
    invokes = []
    for name, arguments in calls:
        parameters = "\n".join(_parameter(key, value) for key, value in arguments.items())
        invokes.append(f'{INVOKE} name="{name}">\n{parameters}\n{INVOKE_END}')
    inside = "\n".join(invokes)
    return f"\n\n<{DSML}{TAIL_TAGS[0]}>\n{inside}\n</{DSML}{TAIL_TAGS[0]}>"


def _parameter(key: str, value: object) -> str:
    is_string = isinstance(value, str)
    text = value if is_string else json.dumps(value, ensure_ascii=False)
    return f'{PARAMETER} name="{key}" string="{"true" if is_string else "false"}">{text}{PARAMETER_END}'


def _read_call(scanner: TextScanner, sink: CallSink, schemas: ToolSchemas) -> Reading[None]:
    """From behind the opening of the tag to behind its end."""
    (name,) = yield from _attributes(scanner, _INVOKE_ATTRIBUTES)
    sink.begin(name)
    writer = ArgumentWriter(sink)
    keys: set[str] = set()
    wrapped: tuple[str, str, str] | None = None
    yield from scanner.take_space()
    while (yield from scanner.expect(PARAMETER, INVOKE_END)) == PARAMETER:
        key, is_string = yield from _attributes(scanner, _PARAMETER_ATTRIBUTES)
        if key in keys:
            raise Malformed("a parameter is given twice")
        if not keys and _may_wrap(name, key, schemas):
            pieces: list[str] = []
            yield from scanner.take_until(PARAMETER_END, pieces.append)
            wrapped = (key, is_string, "".join(pieces))
        else:
            if wrapped is not None:
                _write(writer, *wrapped)
                wrapped = None
            writer.begin(key, None if is_string == "true" else _json_or_string)
            yield from scanner.take_until(PARAMETER_END, writer.add)
            writer.end()
        keys.add(key)
        yield from scanner.take_space()
    if wrapped is not None and (arguments := _object_text(wrapped[2])) is not None:
        sink.arguments(arguments)
    else:
        if wrapped is not None:
            _write(writer, *wrapped)
        writer.close()
    sink.end()


def _write(writer: ArgumentWriter, key: str, is_string: str, text: str) -> None:
    writer.begin(key, None if is_string == "true" else _json_or_string)
    writer.add(text)
    writer.end()


def _attributes(scanner: TextScanner, pattern: re.Pattern[str]) -> Reading[tuple[str, ...]]:
    text = yield from scanner.take_before(_TAG_STOP)
    yield from scanner.expect(">")
    found = pattern.fullmatch(text)
    if found is None:
        raise Malformed("a tag with other attributes")
    return found.groups()


def _whole_arguments(tool: str, values: dict[str, tuple[str, str]], schemas: ToolSchemas) -> str:
    if len(values) == 1:
        ((key, (_, raw)),) = values.items()
        if _may_wrap(tool, key, schemas) and (arguments := _object_text(raw)) is not None:
            return arguments
    return join_arguments(
        {
            key: json_string(raw) if is_string == "true" else _json_or_string(raw)
            for key, (is_string, raw) in values.items()
        }
    )


def _may_wrap(tool: str, key: str, schemas: ToolSchemas) -> bool:
    return key in WRAPPERS and schemas.has_tool(tool) and not schemas.has_parameter(tool, key)


def _object_text(text: str) -> str | None:
    text = text.strip(SPACE)
    try:
        return text if isinstance(strict_json(text), dict) else None
    except ValueError:
        return None


def _json_or_string(text: str) -> str:
    stripped = text.strip(SPACE)
    try:
        strict_json(stripped)
    except ValueError:
        return json_string(text)
    return stripped
