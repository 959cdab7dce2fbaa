"""What people reported of other programs' tool-call parsers, one test each; the number is theirs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pocketllm.text.tool_calls import BUILT_IN
from tests.text.joined_calls import join_calls

SYNTAXES = {syntax.name: syntax for syntax in BUILT_IN}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


def calls(syntax: str, text: str, *tools: dict[str, Any]) -> list[tuple[str, Any]] | None:
    """Streamed one character at a time; None when all of it came out as content."""
    parser = SYNTAXES[syntax].stream(tools)
    deltas = [parser.feed(char) for char in text] + [parser.finish()]
    found = join_calls(call for delta in deltas for call in delta.calls)
    if not found:
        assert "".join(delta.content for delta in deltas) == text
        return None
    return [(call.name, json.loads(call.arguments)) for call in found]


def xml(name: str, **parameters: str) -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def test_vllm_39771_a_malformed_parameter_loses_no_text() -> None:
    text = "<tool_call>\n<function=f>\n<parameter=a\nx\n</parameter>\n</function>\n</tool_call>"
    assert calls("qwen_xml", text) is None


@pytest.mark.parametrize("name", ["get weather", "get<weather", "get\nweather", " f", ""])
def test_vllm_55495_names_have_neither_white_space_nor_brackets(name: str) -> None:
    assert calls("qwen_xml", xml(name)) is None


def test_vllm_48846_white_space_in_a_value_is_kept() -> None:
    code = "    if x:\n        y()  \n\n"
    assert calls("qwen_xml", xml("f", code=code)) == [("f", {"code": code})]


def test_vllm_30439_eager_arguments_arrive_as_they_are_written() -> None:
    parser = SYNTAXES["qwen_xml"].stream([tool("f", text={"type": "string"})], eager=True)
    deltas = [parser.feed(char) for char in xml("f", text="a long value")]
    pieces = [call.arguments_delta for delta in deltas for call in delta.calls if call.name is None]
    assert len(pieces) > 10
    assert json.loads("".join(pieces)) == {"text": "a long value"}


def test_vllm_47907_a_call_that_arrives_in_one_piece_is_not_lost() -> None:
    for eager in (False, True):
        parser = SYNTAXES["hermes_json"].stream(None, eager=eager)
        deltas = [parser.feed('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'), parser.finish()]
        (call,) = join_calls(call for delta in deltas for call in delta.calls)
        assert (call.name, call.arguments) == ("f", '{"a": 1}')


def test_llama_cpp_26763_a_value_without_newlines_swallows_nothing() -> None:
    text = "<tool_call><function=f><parameter=a>value</parameter></function></tool_call>" + xml("g", b="2")
    assert calls("qwen_xml", text) == [("f", {"a": "value"}), ("g", {"b": "2"})]


def test_llama_cpp_21771_an_array_of_objects_and_a_python_boolean() -> None:
    tools = tool("f", items={"type": "array"}, flag={"type": "boolean"})
    text = xml("f", items='[{"a": 1}, {"b": true}]', flag="True")
    assert calls("qwen_xml", text, tools) == [("f", {"items": [{"a": 1}, {"b": True}], "flag": True})]


def test_llama_cpp_21771_no_part_of_a_tag_leaks() -> None:
    parser = SYNTAXES["qwen_xml"].stream(None)
    assert [parser.feed(char).content for char in "Hi.\n<tool_call>"] == ["H", "i", "."] + [""] * 12


def test_sglang_36835_an_empty_value_and_a_literal_none() -> None:
    tools = tool("f", a={"type": "integer"}, b={"type": ["integer", "null"]})
    assert calls("qwen_xml", xml("f", a="", b="None"), tools) == [("f", {"a": "", "b": None})]


def test_mlx_lm_1310_an_integer_that_is_none_does_not_drop_the_call() -> None:
    tools = tool("f", a={"type": "integer"})
    assert calls("qwen_xml", xml("f", a="about three"), tools) == [("f", {"a": "about three"})]


def test_ollama_14493_each_syntax_leaves_the_other_one_alone() -> None:
    assert calls("hermes_json", xml("f", a="1")) is None
    assert calls("qwen_xml", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>') is None


@pytest.mark.parametrize("key", ["arguments", "input"])
def test_sglang_38924_one_parameter_with_the_whole_object_is_unwrapped(key: str) -> None:
    text = (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
        f'<｜DSML｜parameter name="{key}" string="false">{{"city": "Köln"}}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    )
    assert calls("deepseek_dsml", text, tool("f", city={"type": "string"})) == [("f", {"city": "Köln"})]
    wrapped = [("f", {key: {"city": "Köln"}})]
    assert calls("deepseek_dsml", text, tool("f", **{key: {"type": "object"}})) == wrapped
    assert calls("deepseek_dsml", text) == wrapped  # nobody says what parameters there are


def test_vllm_54686_broken_dsml_is_content_as_it_stands() -> None:
    assert calls("deepseek_dsml", 'So:\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n') is None


def test_vllm_28806_calls_without_parameters() -> None:
    text = '<tool_call>\n{"name": "f"}\n</tool_call>\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
    assert calls("hermes_json", text) == [("f", {}), ("g", {})]  # and #22885: {} is not absent
    assert calls("qwen_xml", "<tool_call>\n<function=f>\n</function>\n</tool_call>") == [("f", {})]


def test_vllm_45167_the_closing_tag_inside_a_string_ends_nothing() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"html": "</tool_call> \\" }<tool_call>"}}\n</tool_call>'
    assert calls("hermes_json", text) == [("f", {"html": '</tool_call> " }<tool_call>'})]


def test_vllm_10395_arguments_before_the_name() -> None:
    assert calls("hermes_json", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>') == [("f", {"a": 1})]


@pytest.mark.parametrize("num_kept", range(1, len(xml("f", a="1"))))
def test_vllm_53269_a_call_that_breaks_off_is_not_reported_as_whole(num_kept: int) -> None:
    text = xml("f", a="1")[:num_kept]
    assert calls("qwen_xml", text) is None
    parser = SYNTAXES["qwen_xml"].stream(None, eager=True)
    deltas = [parser.feed(text), parser.finish()]
    assert not parser.calls_complete
    for call in join_calls(call for delta in deltas for call in delta.calls):
        assert call.arguments in '{"a": "1"}'


def test_indexes_and_ids_differ_from_call_to_call() -> None:
    parser = SYNTAXES["qwen_xml"].stream(None)
    parser.feed(xml("f") + xml("f"))
    first, second = join_calls(parser.finish().calls)
    assert (first.index, second.index) == (0, 1)
    assert first.id != second.id
    assert first.id.startswith("call_")
    assert len(first.id) == len("call_") + 24
