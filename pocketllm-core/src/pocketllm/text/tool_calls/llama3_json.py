"""Calls as Llama 3.1 and later write them: bare JSON as the whole answer, several with ``;`` between them.

    {"name": "f", "parameters": {...}}; {"name": "g", "parameters": {...}}

With ``<|python_tag|>`` in front, prose may come before it. Without, nothing but the name tells a call from an answer in
JSON, so each name must be one of the request's tools.
"""

from __future__ import annotations

import re

from pocketllm.text.tool_calls.base import ParsedCalls, Tools
from pocketllm.text.tool_calls.call_tail import CallSink, TailSyntax
from pocketllm.text.tool_calls.json_call import parse_call, read_call
from pocketllm.text.tool_calls.scanner import Malformed, Reading, TextScanner
from pocketllm.text.tool_calls.typing_rules import ToolSchemas

TAG = "<|python_tag|>"

_PARAMETERS = re.compile(r'"parameters\\?"\s*:')
_BARE = re.compile(r"[ \t\r\n]*(?=\{)")
_TAG = re.compile(r"<\|python_tag\|>[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n]*;[ \t\r\n]*")
_SPACES = re.compile(r"[ \t\r\n]*")


class Llama3Json(TailSyntax):
    """The syntax of Llama 3.1 and later."""

    name = "llama3_json"
    special_texts = (TAG,)
    marks = (TAG,)
    leading_marks = ("{",)

    def recognises(self, template_source: str | None, model_type: str) -> bool:
        if template_source is None or "<function=" in template_source:
            return False
        has_role = TAG in template_source or "ipython" in template_source
        return has_role and _PARAMETERS.search(template_source) is not None

    def parse(self, text: str, tools: Tools) -> ParsedCalls | None:
        schemas = ToolSchemas(tools)
        opening = _BARE.match(text)
        bare = opening is not None
        opening = opening or _TAG.search(text)
        if opening is None:
            return None
        start, position = opening.end() if bare else opening.start(), opening.end()
        calls = []
        while True:
            try:
                call, position = parse_call(text, position, schemas.has_tool if bare else _any_name)
            except Malformed:
                return None
            calls.append(call)
            between = _BETWEEN.match(text, position)
            if between is None:
                break
            position = between.end()
        if not _SPACES.fullmatch(text, position):
            return None
        return ParsedCalls(self.content_before(text, start), tuple(calls))

    def read(self, scanner: TextScanner, sink: CallSink, schemas: ToolSchemas) -> Reading[None]:
        tagged = (yield from scanner.peek(TAG, "{")) == TAG
        if tagged:
            yield from scanner.expect(TAG)
            yield from scanner.take_space()
        while True:
            yield from read_call(scanner, sink, _any_name if tagged else schemas.has_tool)
            yield from scanner.take_space()
            if (yield from scanner.at_end()):
                return
            yield from scanner.expect(";")
            yield from scanner.take_space()


def _any_name(name: str) -> bool:
    return True
