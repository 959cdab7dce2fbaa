"""Forced calls are calls: the parser of the syntax reads them, and their arguments fit the tools' schemas."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from pocketllm.checkpoint import Tokenizer
from pocketllm.errors import ConfigurationError
from pocketllm.structured import TOOL_CALL_SYNTAXES, SchemaRefusedError, compile_constraint, tool_call_constraint
from pocketllm.text.tool_calls import BUILT_IN, ParsedCalls
from tests.structured.sampling import accepts, byte_ids, walk

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "unit": {"enum": ["c", "f", None]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "where": {"$ref": "#/$defs/point"},
        "code": {"type": "string", "pattern": "^[A-Z]{2}$"},
    },
    "required": ["city", "code"],
    "additionalProperties": False,
    "$defs": {"point": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}},
}
TREE = {
    "type": "object",
    "properties": {"tree": {"$ref": "#/$defs/node"}},
    "required": ["tree"],
    "additionalProperties": False,
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
            "additionalProperties": False,
        }
    },
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER, "strict": True}},
    {"type": "function", "function": {"name": "plant", "parameters": TREE, "strict": True}},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS = {"get_weather": WEATHER, "plant": TREE, "now": {"type": "object", "additionalProperties": False}}


ENDINGS = (b'"', b"\n</parameter>", "</｜DSML｜parameter>".encode(), b"}", b"]", b"\n</tool_call>")


def parse(syntax: str, text: str, tools: Sequence[dict[str, Any]] = TOOLS) -> ParsedCalls | None:
    return next(each for each in BUILT_IN if each.name == syntax).parse(text, list(tools))


def completions(constraint: Any, tokenizer: Tokenizer, num_walks: int = 14) -> list[str]:
    compiled = compile_constraint(constraint, tokenizer, param="tools")
    stop_ids = [tokenizer.eos_token_id or 0]
    found = []
    for seed in range(num_walks):
        text = walk(
            compiled.matcher(stop_ids), tokenizer, stop_ids, random.Random(seed), max_tokens=400, endings=ENDINGS
        )
        if text is not None:
            found.append(text.decode())
    assert len(found) >= num_walks // 4
    return found


@pytest.mark.parametrize("syntax", TOOL_CALL_SYNTAXES)
def test_required_calls_parse_and_validate(syntax: str, tokenizer: Tokenizer) -> None:
    names = set()
    for text in completions(tool_call_constraint(syntax, TOOLS, mode="required"), tokenizer, 40):
        parsed = parse(syntax, text)
        assert parsed is not None, text
        assert parsed.content.strip() == ""
        for call in parsed.calls:
            names.add(call.name)
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    assert names == set(SCHEMAS)


@pytest.mark.parametrize("syntax", TOOL_CALL_SYNTAXES)
def test_a_named_tool_is_called_once(syntax: str, tokenizer: Tokenizer) -> None:
    constraint = tool_call_constraint(syntax, TOOLS, mode="named", name="plant")
    for text in completions(constraint, tokenizer):
        parsed = parse(syntax, text)
        assert parsed is not None, text
        assert [call.name for call in parsed.calls] == ["plant"]


@pytest.mark.parametrize("syntax", TOOL_CALL_SYNTAXES)
def test_one_call_where_parallel_calls_are_off(syntax: str, tokenizer: Tokenizer) -> None:
    for text in completions(tool_call_constraint(syntax, TOOLS, mode="required", parallel=False), tokenizer):
        parsed = parse(syntax, text)
        assert parsed is not None
        assert len(parsed.calls) == 1


NATURAL = {
    "hermes_json": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "code": "DE"}}\n</tool_call>',
    "llama3_json": '{"name": "get_weather", "parameters": {"city": "Köln", "code": "DE"}}',
    "qwen_xml": "<tool_call>\n<function=get_weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=code>\nDE\n"
    "</parameter>\n</function>\n</tool_call>",
    "deepseek_dsml": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" '
    'string="true">Köln</｜DSML｜parameter>\n<｜DSML｜parameter name="code" string="true">DE</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
}


@pytest.mark.parametrize("syntax", TOOL_CALL_SYNTAXES)
@pytest.mark.parametrize("mode", ["auto", "required", "named"])
def test_calls_are_accepted_as_models_write_them(syntax: str, mode: str, tokenizer: Tokenizer) -> None:
    constraint = tool_call_constraint(syntax, TOOLS, mode=mode, name="get_weather")
    compiled = compile_constraint(constraint, tokenizer)
    text = NATURAL[syntax]
    assert accepts(compiled.matcher([0]), byte_ids(tokenizer, text))
    assert not accepts(compiled.matcher([0]), byte_ids(tokenizer, text.replace("get_weather", "get_whatever")))
    assert not accepts(compiled.matcher([0]), byte_ids(tokenizer, text.replace("DE", "de")))
    assert not accepts(compiled.matcher([0]), byte_ids(tokenizer, text[:-3]))
    assert accepts(compiled.matcher([0]), byte_ids(tokenizer, "Just text.")) == (mode == "auto")


@pytest.mark.parametrize("syntax", [name for name in TOOL_CALL_SYNTAXES if name != "llama3_json"])
def test_auto_lets_text_come_before_a_call(syntax: str, tokenizer: Tokenizer) -> None:
    compiled = compile_constraint(tool_call_constraint(syntax, TOOLS, mode="auto"), tokenizer)
    text = "Let me see: 1 < 2. " + NATURAL[syntax]
    assert accepts(compiled.matcher([0]), byte_ids(tokenizer, text))
    parsed = parse(syntax, text)
    assert parsed is not None
    assert len(parsed.calls) == 1
    assert not accepts(compiled.matcher([0]), byte_ids(tokenizer, text + " and so on"))


@pytest.mark.parametrize("syntax", TOOL_CALL_SYNTAXES)
def test_what_a_tool_that_is_not_strict_cannot_have_enforced_is_left_free(syntax: str, tokenizer: Tokenizer) -> None:
    loose = {"type": "object", "properties": {"ids": {"type": "array", "uniqueItems": True}}, "required": ["ids"]}
    tools = [{"type": "function", "function": {"name": "pick", "parameters": loose}}]
    compiled = compile_constraint(tool_call_constraint(syntax, tools, mode="required"), tokenizer)
    assert not compiled.matcher([0]).is_done
    tools[0]["function"]["strict"] = True
    with pytest.raises(SchemaRefusedError, match="pick") as caught:
        tool_call_constraint(syntax, tools, mode="required")
    assert caught.value.pointer == "/properties/ids/uniqueItems"
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    ("arguments", "complaint", "param"),
    [
        ({"syntax_name": "pythonic", "tools": TOOLS, "mode": "required"}, "known are", "tool_choice"),
        (
            {"syntax_name": "qwen_xml", "tools": TOOLS, "mode": "named", "name": "x"},
            "no tool is named 'x'",
            "tool_choice",
        ),
        ({"syntax_name": "qwen_xml", "tools": [], "mode": "required"}, "no tools", "tool_choice"),
        ({"syntax_name": "qwen_xml", "tools": [{"type": "function"}], "mode": "auto"}, "with a name", "tools"),
    ],
)
def test_a_call_that_cannot_be_asked_for_is_refused(arguments: dict[str, Any], complaint: str, param: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        tool_call_constraint(**arguments)
    assert caught.value.param == param


def test_the_syntaxes_are_those_that_are_parsed() -> None:
    assert set(TOOL_CALL_SYNTAXES) == {syntax.name for syntax in BUILT_IN}
