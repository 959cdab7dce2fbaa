"""Calls as Qwen 3.5 and later, Qwen3-Coder and others write them::

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

A value has no type of its own; the request's schema gives it one. It ends at the first ``</parameter>`` behind which
the next tag follows, so that code with such tags in it survives, and loses one newline at either end, no more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from pocketllm.text.tool_calls.argument_writer import ArgumentWriter, join_arguments
from pocketllm.text.tool_calls.base import ParsedCall, ParsedCalls, Tools
from pocketllm.text.tool_calls.call_tail import CallSink, TailSyntax
from pocketllm.text.tool_calls.scanner import Malformed, Reading, TextScanner
from pocketllm.text.tool_calls.typing_rules import ToolSchemas, argument_json

CALL, CALL_END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"

_NAME_STOP = re.compile(r'[<>\s"]')
_CALL_OPEN = re.compile(r'<tool_call>[ \t\r\n]*<function=([^<>\s"]+)>')
_PARAMETER_OPEN = re.compile(r'[ \t\r\n]*<parameter=([^<>\s"]+)>')
_VALUE_END = re.compile(r"</parameter>(?=[ \t\r\n]*(?:<parameter=|</function>))")
_CALL_CLOSE = re.compile(r"[ \t\r\n]*</function>[ \t\r\n]*</tool_call>[ \t\r\n]*")


class QwenXml(TailSyntax):
    """The syntax of Qwen 3.5 and later, and of Qwen3-Coder."""

    name = "qwen_xml"
    special_texts = (CALL, CALL_END)
    marks = (CALL,)

    def recognises(self, template_source: str | None, model_type: str) -> bool:
        return template_source is not None and all(tag in template_source for tag in (CALL, FUNCTION, PARAMETER))

    def parse(self, text: str, tools: Tools) -> ParsedCalls | None:
        schemas = ToolSchemas(tools)
        start = position = text.find(CALL)
        calls = []
        while start >= 0 and position < len(text):
            opening = _CALL_OPEN.match(text, position)
            if opening is None:
                return None
            name, position = opening[1], opening.end()
            values: dict[str, str] = {}
            while parameter := _PARAMETER_OPEN.match(text, position):
                end = _VALUE_END.search(text, parameter.end())
                if end is None or parameter[1] in values:
                    return None
                value = text[parameter.end() : end.start()].removeprefix("\n").removesuffix("\n")
                values[parameter[1]] = argument_json(value, schemas.declared(name, parameter[1]))
                position = end.end()
            closing = _CALL_CLOSE.match(text, position)
            if closing is None:
                return None
            position = closing.end()
            calls.append(ParsedCall(name, join_arguments(values)))
        return ParsedCalls(self.content_before(text, start), tuple(calls)) if calls else None

    def read(self, scanner: TextScanner, sink: CallSink, schemas: ToolSchemas) -> Reading[None]:
        while True:
            yield from scanner.expect(CALL)
            yield from scanner.take_space()
            yield from scanner.expect(FUNCTION)
            name = yield from _name(scanner)
            sink.begin(name)
            writer = ArgumentWriter(sink)
            keys = set()
            yield from scanner.take_space()
            while (yield from scanner.expect(PARAMETER, FUNCTION_END)) == PARAMETER:
                key = yield from _name(scanner)
                if key in keys:
                    raise Malformed("a parameter is given twice")
                keys.add(key)
                declared = schemas.declared(name, key)
                writer.begin(key, None if declared.is_string else partial(argument_json, declared=declared))
                yield from _value(scanner, writer.add)
                writer.end()
            writer.close()
            yield from scanner.take_space()
            yield from scanner.expect(CALL_END)
            sink.end()
            yield from scanner.take_space()
            if (yield from scanner.at_end()):
                return


def _name(scanner: TextScanner) -> Reading[str]:
    name = yield from scanner.take_before(_NAME_STOP)
    yield from scanner.expect(">")
    if not name:
        raise Malformed("a tag without a name")
    return name


def _value(scanner: TextScanner, emit: Callable[[str], None]) -> Reading[None]:
    """Pass on a value and stop in front of the tag behind it."""
    layout = _WithoutLayout(emit)
    while True:
        yield from scanner.take_until(PARAMETER_END, layout.add)
        between = yield from scanner.take_space()
        if (yield from scanner.peek(PARAMETER, FUNCTION_END)) is not None:
            return
        layout.add(PARAMETER_END + between)


class _WithoutLayout:
    """Passes text on but for one newline at the start and one at the end."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._at_start = True
        self._newline = ""

    def add(self, text: str) -> None:
        if self._at_start:
            self._at_start = False
            text = text.removeprefix("\n")
        if text:
            text = self._newline + text
            self._newline = "\n" if text.endswith("\n") else ""
            if text := text.removesuffix("\n"):
                self._emit(text)
