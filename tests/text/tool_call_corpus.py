"""Completions with and without tool calls, for every syntax, each with what a reader must find in it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pocketllm.text.tool_calls import BUILT_IN, ToolCallSyntax

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "write",
            "description": "Write <text> & more.",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "count": {"type": "integer"},
                    "ratio": {"type": "number"},
                    "flag": {"type": "boolean"},
                    "items": {"type": "array", "items": {"type": "object"}},
                    "options": {"type": "object"},
                    "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    "note": {"type": ["string", "null"]},
                    "free": {"description": "of no declared type"},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "look"}},
]
SYNTAXES: dict[str, ToolCallSyntax] = {syntax.name: syntax for syntax in BUILT_IN}

Calls = list[tuple[str, dict[str, Any]]]


class Completion(NamedTuple):
    """``calls`` is None where all of ``text`` must stay content."""

    text: str
    content: str = ""
    calls: Calls | None = None


CONTENTS = ["", "Let me look.", "One moment … 😊", "a < b and <tool", "Two\n\nparagraphs", '{ "x": <|p', "<｜DSML｜ is"]
TEXTS = [
    "x",
    "",
    " two  spaces ",
    "\n",
    "\n\n",
    "\nline\n",
    "a\n\nb\n",
    "null",
    "123",
    "true",
    "01234",
    "naïve 日本語 😊",
    'quotes " and \\ back\\n',
    "\ttab\r\n",
    "<b>bold</b> & <i>",
    "</tool_call>",
    "<tool_call>",
    "if a < b: return '<function=f>'",
    "{not json",
    "[1, 2",
    "ends with </",
    "x\u2028y\u0000z",
    "💥" * 9,
    "def f(x):\n    return x\n",
]
TRAILERS = ["", "\n", " \r\n\t"]

# Arguments that are no strings: key, how a model writes it, what it means under TOOLS.
TYPED: list[tuple[str, str, Any]] = [
    ("count", "3", 3),
    ("count", " -17 ", -17),
    ("count", "3.0", "3.0"),
    ("count", "two", "two"),
    ("count", "", ""),
    ("count", "null", "null"),
    ("count", "007", "007"),
    ("count", "123456789012345678901234567890", 123456789012345678901234567890),
    ("ratio", "2", 2),
    ("ratio", "-2.50e3", -2500.0),
    ("ratio", "NaN", "NaN"),
    ("ratio", "Infinity", "Infinity"),
    ("ratio", ".5", ".5"),
    ("flag", "true", True),
    ("flag", "False", False),
    ("flag", "yes", "yes"),
    ("items", '[{"a": 1}, {"b": [true, null]}]', [{"a": 1}, {"b": [True, None]}]),
    ("items", "[]", []),
    ("items", '{"a": 1}', '{"a": 1}'),
    ("items", "[{'a': True}]", "[{'a': True}]"),
    ("options", '{\n  "x": "</parameter>",\n  "y": {}\n}', {"x": "</parameter>", "y": {}}),
    ("options", "{broken", "{broken"),
    ("limit", "5", 5),
    ("limit", "null", None),
    ("limit", "None", None),
    ("limit", "many", "many"),
    ("note", "null", None),
    ("note", "nullify", "nullify"),
    ("free", "12", "12"),
    ("other", "[1]", "[1]"),
]
OBJECTS: list[dict[str, Any]] = [
    {},
    {"text": "x"},
    *({"text": text} for text in TEXTS),
    {"count": 3, "ratio": 0.5, "flag": True, "limit": None},
    {"items": [{"a": [1, {"b": "}"}]}, []], "options": {"k": {"k": {}}}},
    {"arguments": {"name": "x"}, "name": "y", "парам": [""]},
    {"big": 123456789012345678901234567890, "neg": -0.0},
]


def _spread(bodies: Iterator[tuple[str, Calls]], joint: str) -> Iterator[Completion]:
    """Bodies that parse, with prose before them and white space behind."""
    contents, trailers = itertools.cycle(CONTENTS), itertools.cycle(TRAILERS)
    for body, calls in bodies:
        content = next(contents)
        yield Completion(content + joint + body + next(trailers), content, calls)


def _cut(completions: list[Completion], num: int) -> Iterator[Completion]:
    """Completions that break off before their calls are whole."""
    for number, completion in enumerate(itertools.islice(itertools.cycle(completions), num)):
        length = len(completion.text.rstrip())
        yield Completion(completion.text[: 1 + (number * 37) % (length - 1)])


def _values_of(syntax: str) -> Iterator[tuple[str, str, Any]]:
    yield from (("text", text, text) for text in TEXTS)
    if syntax == "qwen_xml":
        yield from TYPED


def qwen_xml() -> Iterator[Completion]:
    def call(name: str, *parameters: tuple[str, str], newline: str = "\n") -> str:
        inside = "".join(f"<parameter={key}>{newline}{raw}{newline}</parameter>\n" for key, raw in parameters)
        return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"

    def bodies() -> Iterator[tuple[str, Calls]]:
        for key, raw, value in _values_of("qwen_xml"):
            yield call("write", (key, raw)), [("write", {key: value})]
            if not raw.startswith("\n") and not raw.endswith("\n"):
                yield call("write", (key, raw), newline=""), [("write", {key: value})]
        for (key, raw, value), (text_key, text, _) in zip(TYPED, _values_of(""), strict=False):
            first, second = call("write", (text_key, text), (key, raw)), call("look")
            yield first + "\n" + second, [("write", {text_key: text, key: value}), ("look", {})]
            yield second + first, [("look", {}), ("write", {text_key: text, key: value})]
        yield call("unknown", ("count", "3")), [("unknown", {"count": "3"})]
        yield "<tool_call><function=look></function></tool_call>" * 3, [("look", {})] * 3
        yield "<tool_call> \r\n<function=look>\n\n \n</function>\t</tool_call>", [("look", {})]
        yield call("write", ("text", "a</parameter>b")), [("write", {"text": "a</parameter>b"})]
        yield (
            call("write", ("text", "a</parameter>\n\n  b</parameter")),
            [("write", {"text": "a</parameter>\n\n  b</parameter"})],
        )

    valid = list(_spread(bodies(), "\n\n"))
    yield from valid
    yield from _cut(valid, 60)
    good = call("write", ("text", "x"))
    yield from map(Completion, CONTENTS)
    for text in [
        f"{good}\nprose between\n{good}",
        f"{good} and prose behind",
        f"{good}\n<tool_call>",
        f"{good}{good[:-3]}",
        f"<tool_call>\nnot a call\n</tool_call>\n{good}",
        f"Write `<tool_call>` first. {good}",
        good.replace("</function>", ""),
        good.replace("</tool_call>", ""),
        good.replace("</parameter>", ""),
        good.replace("<parameter=text>", "<parameter=text"),
        good.replace("<parameter=text>", "<parameter=>"),
        good.replace("<parameter=text>", '<parameter="text">'),
        good.replace("<parameter=text>", "<parameter=te xt>"),
        good.replace("<function=write>", "<function=>"),
        good.replace("<function=write>", "<function=wr ite>"),
        good.replace("<function=write>", "<function=write\n>"),
        good.replace("<function=write>", "<function=wr<ite>"),
        good.replace("<function=write>", "function=write>"),
        good.replace("<function=write>", "<function=write>prose"),
        call("write", ("text", "a"), ("text", "b")),
        call("write", ("text", "a")).replace("</parameter>\n", "</parameter>prose"),
        '<tool_call>\n{"name": "write", "arguments": {}}\n</tool_call>',
        good.upper(),
        "</tool_call>" + good[: -len("</tool_call>")],
    ]:
        yield Completion(text)


def _json_broken(call: Callable[[str], str], key: str) -> Iterator[str]:
    """Texts where the object is at fault; ``call`` puts the object into its frame."""
    for raw in [
        "",
        "{}",
        "[]",
        "write",
        "[{}]",
        f'{{"name": "write", "{key}": {{}}',
        f'{{"name": "write", "{key}": {{}}}}}}',
        f'{{"name": "write" "{key}": {{}}}}',
        f'{{"name": "write", "{key}": {{}},}}',
        f'{{"name": "write", "{key}": {{"a": NaN}}}}',
        f'{{"name": "write", "{key}": {{"a": -Infinity}}}}',
        f'{{"name": "write", "{key}": {{"a": 01}}}}',
        f'{{"name": "write", "{key}": {{"a": "line\nline"}}}}',
        f'{{"name": "write", "{key}": {{"a": [}}]}}}}',
        f"{{'name': 'write', '{key}': {{}}}}",
        f'{{"name": "write", "{key}": [1]}}',
        f'{{"name": "write", "{key}": 7}}',
        f'{{"name": "write", "{key}": tru}}',
        f'{{"name": "write", "{key}": "no json"}}',
        f'{{"name": "write", "{key}": "[1]"}}',
        f'{{"name": "write", "{key}": {{}}, "{key}": {{}}}}',
        '{"name": "write", "arguments": {}, "parameters": {}}',
        f'{{"name": "write", "{key}": {{}}, "thought": "lost"}}',
        f'{{"name": "", "{key}": {{}}}}',
        f'{{"name": null, "{key}": {{}}}}',
        f'{{"name": ["write"], "{key}": {{}}}}',
        f'{{"{key}": {{}}}}',
        f'{{"type": "object", "name": "write", "{key}": {{}}}}',
        f'{{"name": "write", "{key}": ' + "[" * 200 + "]" * 200 + "}",
    ]:
        yield call(raw)


def _json_objects(key: str) -> Iterator[tuple[str, tuple[str, dict[str, Any]]]]:
    """(object, the call it makes)"""
    for arguments in OBJECTS:
        for style in ({"separators": (",", ":")}, {"ensure_ascii": False}, {"indent": 2}):
            yield json.dumps({"name": "write", key: arguments}, **style), ("write", arguments)
    yield '{"name": "look"}', ("look", {})
    yield f'{{"name": "look", "{key}": null}}', ("look", {})
    yield f'{{"{key}": {{"text": "first"}}, "name": "write"}}', ("write", {"text": "first"})
    yield f'{{"name": "write", "{key}": "{{\\"text\\": \\"in a string\\"}}"}}', ("write", {"text": "in a string"})
    yield f'{{"type": "function", "name": "look", "{key}": {{}}, "id": {{"x": [1]}}}}', ("look", {})
    yield f'{{ "name" : "lo\\u006fk" ,\n"{key}":{{ }} }}', ("look", {})
    yield '{"name": "look", "parameters": {"a": 1e2}}', ("look", {"a": 100.0})
    yield '{"name": "look", "arguments": {"a": 1e2}}', ("look", {"a": 100.0})


def hermes_json() -> Iterator[Completion]:
    def call(raw: str) -> str:
        return f"<tool_call>\n{raw}\n</tool_call>"

    def bodies() -> Iterator[tuple[str, Calls]]:
        objects = list(_json_objects("arguments"))
        for number, (raw, made) in enumerate(objects):
            yield (f"<tool_call>{raw}</tool_call>" if number % 3 == 0 else call(raw)), [made]
        for (raw, made), (other, also) in zip(objects[::5], objects[3::5], strict=False):
            yield call(raw) + "\n" + call(other), [made, also]
        yield call('{"name": "any name", "arguments": {}}'), [("any name", {})]

    valid = list(_spread(bodies(), "\n"))
    yield from valid
    yield from _cut(valid, 60)
    good = call('{"name": "write", "arguments": {"text": "x"}}')
    yield from map(Completion, [*CONTENTS, *_json_broken(call, "arguments")])
    for text in [
        f"{good} prose {good}",
        f"{good}\nprose",
        f"{good}<tool_call>",
        good.replace("</tool_call>", ""),
        good.replace("</tool_call>", "</tool_calls>"),
        good.replace("<tool_call>", "<tool_call>json"),
        f"Say <tool_call>, then {good}",
        "<tool_call>\n<function=write>\n</function>\n</tool_call>",
    ]:
        yield Completion(text)


def llama3_json() -> Iterator[Completion]:
    objects = list(_json_objects("parameters"))

    def tagged() -> Iterator[tuple[str, Calls]]:
        for raw, made in objects:
            yield f"<|python_tag|>{raw}", [made]
        for (raw, made), (other, also) in zip(objects[::4], objects[3::4], strict=False):
            yield f"<|python_tag|> {raw}; {other}", [made, also]
        yield '<|python_tag|>{"name": "any name"}', [("any name", {})]

    # Prose that begins with a brace begins a bare call, so it cannot come before a tagged one.
    valid = [one for one in _spread(tagged(), " ") if not one.content.startswith("{")]
    trailers = itertools.cycle(TRAILERS)
    for raw, made in objects:
        valid.append(Completion(next(trailers) + raw + next(trailers), "", [made]))
    for (raw, made), (other, also) in zip(objects[::4], objects[2::4], strict=False):
        valid.append(Completion(f"{raw} ;\n{other}", "", [made, also]))
    yield from valid
    yield from _cut(valid, 60)
    yield from map(Completion, [*CONTENTS, *_json_broken(str, "parameters")])
    yield from map(Completion, _json_broken("Well: <|python_tag|>{}".format, "parameters"))
    good = '{"name": "write", "parameters": {"text": "x"}}'
    for text in [
        f"Prose, then {good}",
        f"{good} prose",
        f"{good}, {good}",
        f"{good}; ",
        f"{good}; prose",
        f"{good}; <|python_tag|>{good}",
        '{"name": "Ada", "parameters": {"born": 1815}}',
        f'{good}; {{"name": "stranger", "parameters": {{}}}}',
        '{"answer": 42}',
        f"{{x}} <|python_tag|>{good}",
        '<|python_tag|>look.call(query="x")',
        f"<|python_tag|>{good} and prose",
        f"<|python_tag|>{good}<|python_tag|>{good}",
        f"```json\n{good}\n```",
    ]:
        yield Completion(text)


def deepseek_dsml() -> Iterator[Completion]:
    def value(key: str, is_string: bool, raw: str) -> str:
        flag = "true" if is_string else "false"
        return f'<｜DSML｜parameter name="{key}" string="{flag}">{raw}</｜DSML｜parameter>'

    def call(name: str, *parameters: str) -> str:
        return f'<｜DSML｜invoke name="{name}">\n' + "\n".join(parameters) + "\n</｜DSML｜invoke>"

    def block(*calls: str, name: str = "tool_calls") -> str:
        return f"<｜DSML｜{name}>\n" + "\n".join(calls) + f"\n</｜DSML｜{name}>"

    def bodies() -> Iterator[tuple[str, Calls]]:
        for text in TEXTS:
            yield block(call("write", value("text", True, text))), [("write", {"text": text})]
            yield block(call("write", value("text", True, text)), name="function_calls"), [("write", {"text": text})]
        for raw, meant in [
            ("3", 3),
            (" 3 ", 3),
            ('"x"', "x"),
            ("null", None),
            ("True", "True"),
            ("NaN", "NaN"),
            (" two words ", " two words "),
            ("", ""),
            ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
            ("[{'a': True}]", "[{'a': True}]"),
            ("123456789012345678901234567890", 123456789012345678901234567890),
        ]:
            yield block(call("write", value("count", False, raw))), [("write", {"count": meant})]
            yield (
                block(call("nobody", value("count", False, raw)), call("look")),
                [
                    ("nobody", {"count": meant}),
                    ("look", {}),
                ],
            )
        for arguments in OBJECTS:
            raw = json.dumps(arguments, ensure_ascii=False)
            for key, is_string in itertools.product(("arguments", "input"), (True, False)):
                yield block(call("write", value(key, is_string, raw))), [("write", arguments)]
            yield block(call("nobody", value("input", False, raw))), [("nobody", {"input": arguments})]
        more = value("text", True, "x")
        yield block(call("write", value("input", False, "{}"), more)), [("write", {"input": {}, "text": "x"})]
        yield block(call("write", more, value("input", True, "{}"))), [("write", {"text": "x", "input": "{}"})]
        yield block(call("write", value("arguments", False, "[1]"))), [("write", {"arguments": [1]})]
        yield (
            block(call("look", ""), call("look"), call("write", more)),
            [
                ("look", {}),
                ("look", {}),
                ("write", {"text": "x"}),
            ],
        )
        tight = block(call("write", more, value("count", False, "1"))).replace("\n", "")
        yield tight, [("write", {"text": "x", "count": 1})]
        yield tight.replace(' string="', '\n  string="').replace('">', '" >'), [("write", {"text": "x", "count": 1})]

    valid = list(_spread(bodies(), "\n\n"))
    yield from valid
    yield from _cut(valid, 60)
    good = block(call("write", value("text", True, "x")))
    yield from map(Completion, CONTENTS)
    for text in [
        f"{good} prose",
        f"{good}\n{good}",
        block(),
        block("prose"),
        block(call("write", "prose")),
        block(call("write", value("text", True, "x")), "prose", call("look")),
        block(call("write", value("text", True, "a"), value("text", True, "b"))),
        block(call("write", value("text", True, "a</｜DSML｜parameter>b"))),
        good.replace('string="true"', 'string="maybe"'),
        good.replace(' string="true"', ""),
        good.replace('name="text"', "name=text"),
        good.replace('name="write"', 'name=""'),
        good.replace('name="write"', 'name="a<b"'),
        good.replace("invoke name", "invokename"),
        good.replace("</｜DSML｜invoke>", ""),
        good.replace("</｜DSML｜parameter>", ""),
        good.replace("</｜DSML｜tool_calls>", ""),
        good.replace("</｜DSML｜tool_calls>", "</｜DSML｜function_calls>"),
        good.replace("<｜DSML｜tool_calls>\n", ""),
        good.replace("｜", "|"),
    ]:
        yield Completion(text)


CORPUS: dict[str, list[Completion]] = {
    name: list(make())
    for name, make in {
        "qwen_xml": qwen_xml,
        "hermes_json": hermes_json,
        "llama3_json": llama3_json,
        "deepseek_dsml": deepseek_dsml,
    }.items()
}
