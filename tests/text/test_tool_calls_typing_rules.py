"""Each rule by which the text of an argument gets its type from the request's schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.text.tool_calls.typing_rules import MAX_DEPTH, Declared, ToolSchemas, argument_json, strict_json

DEFINITIONS = {
    "size": {"type": "integer"},
    "loop": {"$ref": "#/$defs/loop"},
    "to/from": {"type": "boolean"},
    "either": {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/size"}]},
}


def typed(schema: object, text: str) -> Any:
    parameters = {"type": "object", "properties": {"p": schema}, "$defs": DEFINITIONS}
    schemas = ToolSchemas([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    return json.loads(argument_json(text, schemas.declared("f", "p")))


@pytest.mark.parametrize("text", ["null", "123", "01234", "true", "[1]", "", " x ", "\n", '"quoted"', "None", "NaN"])
@pytest.mark.parametrize("schema", [{"type": "string"}, {}, None, True, {"type": "strange"}, {"type": 7}, "string"])
def test_strings_and_unknown_types_keep_their_characters(schema: object, text: str) -> None:
    assert typed(schema, text) == text


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("integer", "3", 3),
        ("integer", " -3\n", -3),
        ("integer", "0", 0),
        ("integer", "3.0", "3.0"),
        ("integer", "two", "two"),
        ("integer", "", ""),
        ("integer", "+3", "+3"),
        ("integer", "012", "012"),
        ("integer", "1_000", "1_000"),
        ("integer", "٣", "٣"),
        ("integer", "true", "true"),
        ("integer", "null", "null"),
        ("integer", " x ", " x "),
        ("number", "3", 3),
        ("number", "3.50", 3.5),
        ("number", "-1e-3", -0.001),
        ("number", "1.", "1."),
        ("number", ".5", ".5"),
        ("number", "NaN", "NaN"),
        ("number", "-Infinity", "-Infinity"),
        ("number", "1e999", "1e999"),
        ("number", "0x10", "0x10"),
        ("boolean", "true", True),
        ("boolean", "False", False),
        ("boolean", " True ", True),
        ("boolean", "TRUE", "TRUE"),
        ("boolean", "1", "1"),
        ("object", '{"a": [1]}', {"a": [1]}),
        ("object", '\n{"a": 1}\n', {"a": 1}),
        ("object", "[]", "[]"),
        ("object", "{'a': True}", "{'a': True}"),
        ("object", '{"a": NaN}', '{"a": NaN}'),
        ("object", '{"a": 1', '{"a": 1'),
        ("array", '[{"a": true}, null]', [{"a": True}, None]),
        ("array", "[1, 2,]", "[1, 2,]"),
        ("array", '"x"', '"x"'),
        ("array", "None", "None"),
    ],
)
def test_each_type_takes_what_fits_and_leaves_the_rest_text(kind: str, text: str, value: object) -> None:
    found = typed({"type": kind}, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["integer", "null"]},
        {"type": "integer", "nullable": True},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/size"}]},
        {"enum": [1, 2, None]},
    ],
)
def test_null_only_where_the_schema_allows_it(schema: object) -> None:
    assert typed(schema, "null") is None
    assert typed(schema, " None ") is None
    assert typed(schema, "2") == 2
    assert typed(schema, "x") == "x"
    assert typed({"type": "integer"}, "null") == "null"


def test_a_string_that_may_be_null_is_null_when_the_model_says_so() -> None:
    schema = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert typed(schema, "null") is None
    assert typed(schema, "nullable") == "nullable"
    assert typed(schema, "7") == "7"


def test_the_first_of_several_types_that_fits_wins() -> None:
    assert typed({"type": ["integer", "string"]}, "3") == 3
    assert typed({"type": ["integer", "string"]}, "x") == "x"
    assert typed({"type": ["string", "integer"]}, "3") == "3"
    assert typed({"type": ["number", "boolean"]}, "true") is True
    assert typed({"$ref": "#/$defs/either"}, "4") == 4
    assert typed({"anyOf": [{"type": "array"}, {"type": "object"}]}, '{"a": 1}') == {"a": 1}


def test_enumerations_without_a_type_have_that_of_their_values() -> None:
    assert typed({"enum": ["1", "2"]}, "1") == "1"
    assert typed({"enum": [1, 2]}, "1") == 1
    assert typed({"enum": [True]}, "true") is True
    assert typed({"const": 1.5}, "1.5") == 1.5
    assert typed({"const": "1"}, "1") == "1"
    assert typed({"enum": [[1]]}, "[1]") == [1]


def test_references_are_followed_inside_the_schema() -> None:
    assert typed({"$ref": "#/$defs/size"}, "3") == 3
    assert typed({"allOf": [{"$ref": "#/$defs/size"}]}, "3") == 3
    assert typed({"$ref": "#/$defs/to~1from"}, "true") is True
    for lost in ("#/$defs/loop", "#/$defs/missing", "https://example.org/schema", "size", "#", 7):
        assert typed({"$ref": lost}, "3") == "3"


def test_integers_keep_every_digit() -> None:
    digits = "9" * 60
    assert typed({"type": "integer"}, digits) == int(digits)
    assert argument_json("1.10", Declared(("number",))) == "1.10"
    assert typed({"type": "integer"}, "9" * 5000) == "9" * 5000


def test_arguments_nested_too_deep_stay_text() -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert typed({"type": "array"}, deep) == json.loads(deep)
    assert typed({"type": "array"}, f"[{deep}]") == f"[{deep}]"
    assert typed({"type": "array"}, "[" * 100_000) == "[" * 100_000
    assert strict_json('"' + "[" * 500 + '"') == "[" * 500


def test_without_tools_everything_is_text() -> None:
    for tools in (None, [], [{"type": "function"}], [{"function": {"name": "g", "parameters": None}}]):
        declared = ToolSchemas(tools).declared("f", "p")
        assert declared == Declared()
        assert argument_json("01234", declared) == '"01234"'


def test_only_text_of_string_type_may_leave_early() -> None:
    assert Declared().is_string
    assert Declared(("string",)).is_string
    assert Declared(("string", "integer")).is_string
    assert not Declared(("string",), nullable=True).is_string
    assert not Declared(("integer", "string")).is_string


@given(st.text())
def test_any_text_becomes_json(text: str) -> None:
    for kind in ("string", "integer", "number", "boolean", "object", "array"):
        json.loads(argument_json(text, Declared((kind,), nullable=True)))
    assert json.loads(argument_json(text, Declared())) == text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_values_come_back(value: object) -> None:
    names = {bool: "boolean", int: "integer", list: "array", dict: "object"}
    if type(value) in names:
        assert json.loads(argument_json(json.dumps(value), Declared((names[type(value)],)))) == value
