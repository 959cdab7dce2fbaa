"""Calls as Hermes, Qwen 2.5, Qwen 3, Granite 4 and others write them: JSON between tags.

    <tool_call>
    {"name": "f", "arguments": {...}}
    </tool_call>

The end of the JSON is found by reading it, never by looking for the closing tag, which its strings may hold.
"""

from __future__ import annotations

import re

from pocketllm.text.tool_calls.base import ParsedCalls, Tools
from pocketllm.text.tool_calls.call_tail import CallSink, TailSyntax
from pocketllm.text.tool_calls.json_call import parse_call, read_call
from pocketllm.text.tool_calls.scanner import Malformed, Reading, TextScanner
from pocketllm.text.tool_calls.typing_rules import ToolSchemas

CALL, CALL_END = "<tool_call>", "</tool_call>"

# The tag and the object behind it, as a template's source has them: with escapes, quotes and joints in between.
_EXAMPLE = re.compile(r"""<tool_call>(?:\\n|[\s"'{}~+-])*\{\\?"name\\?":""")
_OPEN = re.compile(r"<tool_call>[ \t\r\n]*")
_CLOSE = re.compile(r"[ \t\r\n]*</tool_call>[ \t\r\n]*")


class HermesJson(TailSyntax):
    """The syntax of Hermes, Qwen 2.5 and Qwen 3."""

    name = "hermes_json"
    special_texts = (CALL, CALL_END)
    marks = (CALL,)

    def recognises(self, template_source: str | None, model_type: str) -> bool:
        if template_source is None or "<function=" in template_source:
            return False
        return _EXAMPLE.search(template_source) is not None and "arguments" in template_source

    def parse(self, text: str, tools: Tools) -> ParsedCalls | None:
        start = position = text.find(CALL)
        calls = []
        while start >= 0 and position < len(text):
            opening = _OPEN.match(text, position)
            if opening is None:
                return None
            try:
                call, position = parse_call(text, opening.end(), _any_name)
            except Malformed:
                return None
            closing = _CLOSE.match(text, position)
            if closing is None:
                return None
            position = closing.end()
            calls.append(call)
        return ParsedCalls(self.content_before(text, start), tuple(calls)) if calls else None

    def read(self, scanner: TextScanner, sink: CallSink, schemas: ToolSchemas) -> Reading[None]:
        while True:
            yield from scanner.expect(CALL)
            yield from scanner.take_space()
            yield from read_call(scanner, sink, _any_name)
            yield from scanner.take_space()
            yield from scanner.expect(CALL_END)
            yield from scanner.take_space()
            if (yield from scanner.at_end()):
                return


def _any_name(name: str) -> bool:
    """The tags say that it is a call; a name that the request does not have is the caller's to answer."""
    return True
