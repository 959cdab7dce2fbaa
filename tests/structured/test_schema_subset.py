"""What is refused, and where the error points."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pocketllm.checkpoint import Tokenizer
from pocketllm.errors import ConfigurationError
from pocketllm.structured import SchemaRefusedError, compile_constraint
from pocketllm.structured.schema_keywords import MAX_DEPTH, MAX_SCHEMA_BYTES
from pocketllm.structured.schema_subset import read_schema, rewrite_schema
from pocketllm.types import Constraint
from tests.structured.sampling import accepts, byte_ids


def compiled_takes(schema: Any, tokenizer: Tokenizer, *texts: str) -> list[bool]:
    compiled = compile_constraint(Constraint("json_schema", json.dumps(schema)), tokenizer)
    return [accepts(compiled.matcher([tokenizer.eos_token_id or 0]), byte_ids(tokenizer, text)) for text in texts]


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"properties": {"a": {"uniqueItems": True}}}, "/properties/a/uniqueItems"),
        ({"properties": {"a/b~c": {"not": {}}}}, "/properties/a~1b~0c/not"),
        ({"anyOf": [{}, {"if": {}}]}, "/anyOf/1/if"),
        ({"items": [{"type": "null"}, {"contains": {}}]}, "/items/1/contains"),
        ({"$defs": {"a": {"propertyNames": {"maxLength": 2}}}, "$ref": "#/$defs/a"}, "/$defs/a/propertyNames"),
        (
            {"type": "object", "additionalProperties": {"unevaluatedItems": False}},
            "/additionalProperties/unevaluatedItems",
        ),
        ({"madeUp": 1}, "/madeUp"),
        ({"nullable": True}, "/nullable"),
        ({"type": "string", "contentEncoding": "base64"}, "/contentEncoding"),
        ({"format": "int32"}, "/format"),
        ({"type": "text"}, "/type"),
        ({"type": []}, "/type"),
        ({"minLength": -1}, "/minLength"),
        ({"maxItems": True}, "/maxItems"),
        ({"maxItems": 10**9}, "/maxItems"),
        ({"minimum": 2**53 + 2}, "/minimum"),
        ({"const": {"a": [2**60]}}, "/const/a/0"),
        ({"enum": ["a\u0000b"]}, "/enum/0"),
        ({"properties": {"a\u007f": {}}}, "/properties/a\u007f"),
        ({"multipleOf": 0}, "/multipleOf"),
        ({"minProperties": 2}, "/minProperties"),
        ({"pattern": "a(?=b)"}, "/pattern"),
        ({"patternProperties": {"\\bx": {}}}, "/patternProperties/\\bx"),
        ({"patternProperties": {"^a": {}, "a$": {}}}, "/patternProperties"),
        ({"$ref": "https://example.com/schema"}, "/$ref"),
        ({"$ref": "#/$defs/missing"}, "/$ref"),
        ({"items": {"$ref": "#anchor"}}, "/items/$ref"),
        ({"$ref": "#"}, "/$ref"),
        ({"properties": {"a": {"$id": "https://example.com/a"}}}, "/properties/a/$id"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "/oneOf"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "/allOf"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "/minLength"),
        ({"properties": {"x": 5}}, "/properties/x"),
        ({"required": "a"}, "/required"),
        ({"enum": []}, "/enum"),
    ],
)
def test_a_refused_schema_is_named_with_a_pointer(schema: Any, pointer: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(SchemaRefusedError) as caught:
        compile_constraint(Constraint("json_schema", json.dumps(schema)), tokenizer)
    assert caught.value.pointer == pointer
    assert pointer in str(caught.value)
    assert caught.value.param == "response_format"
    assert caught.value.status == 400


def test_an_optional_part_that_nothing_satisfies_is_no_fault(tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 2, "maxLength": 1}}}
    assert compiled_takes(schema, tokenizer, "{}", '{"a":"x"}') == [True, False]


def test_annotations_and_neutral_values_are_taken(tokenizer: Tokenizer) -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/schema",
        "title": "T",
        "description": "D",
        "$comment": "C",
        "default": 1,
        "examples": [1],
        "deprecated": False,
        "readOnly": True,
        "writeOnly": False,
        "x-vendor": {"not": {}},
        "uniqueItems": False,
        "unevaluatedProperties": True,
        "type": "integer",
    }
    assert compiled_takes(schema, tokenizer, "12", "1.5") == [True, False]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        # A key may have one spelling only, or a second member could overrule the first.
        ({"properties": {"a": {"type": "integer"}}, "type": "object"}, '{"a":1}', '{"a":1,"\\u0061":"x"}'),
        # Applicators between two keywords that belong together.
        ({"items": [{"type": "null"}], "anyOf": [{"type": "array"}], "additionalItems": False}, "[null]", "[null,1]"),
        ({"minimum": 2, "exclusiveMinimum": True, "type": "integer"}, "3", "2"),
        (
            {"definitions": {"a": {"const": 1}}, "properties": {"b": {"$ref": "#/definitions/a"}}, "type": "object"},
            '{"b":1}',
            '{"b":2}',
        ),
        ({"type": ["string", "null"], "maxLength": 1}, "null", '"ab"'),
        ({"format": "date", "type": "string"}, '"2024-02-29"', '"2023-02-29"'),
        ({"format": "date", "pattern": "^2", "type": "string"}, '"2024-02-28"', '"1999-01-01"'),
        ({"format": "date-time", "type": "string"}, '"2024-02-29T23:59:59Z"', '"2024-02-29T23:59:60Z"'),
        ({"format": "hostname", "type": "string"}, '"a.b"', json.dumps("a." * 130 + "a")),
        ({"format": "ipv4", "type": "string"}, '"127.0.0.1"', '"256.0.0.1"'),
        ({"enum": [1, "a", {"b": [None]}]}, '{"b":[null]}', '{"b":[]}'),
        ({"type": "number", "multipleOf": 0.25}, "-1.75", "0.3"),
        ({"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "boolean"}}, "[true]", "[]"),
        (
            {"type": "object", "minProperties": 1, "required": [], "additionalProperties": {"type": "null"}},
            '{"q":null}',
            "{}",
        ),
    ],
)
def test_every_supported_keyword_is_enforced(schema: Any, good: str, bad: str, tokenizer: Tokenizer) -> None:
    assert compiled_takes(schema, tokenizer, good, bad) == [True, False]


def test_options_of_a_tagged_union_may_be_references(tokenizer: Tokenizer) -> None:
    cat = {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
    dog = {
        "type": "object",
        "properties": {"kind": {"const": "dog"}, "friend": {"$ref": "#/$defs/Cat"}},
        "required": ["kind"],
    }
    schema = {
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        "discriminator": {"propertyName": "kind"},
        "$defs": {"Cat": cat, "Dog": dog},
    }
    texts = ('{"kind":"cat"}', '{"kind":"dog","friend":{"kind":"cat"}}', '{"kind":"cow"}')
    assert compiled_takes(schema, tokenizer, *texts) == [True, True, False]


def test_a_recursive_schema_is_enforced_at_every_depth(tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    assert compiled_takes(schema, tokenizer, '{"next":{"next":{}}}', '{"next":{"last":1}}') == [True, False]


def test_the_given_schema_is_left_alone() -> None:
    schema = {"type": ["integer", "number"], "exclusiveMinimum": True, "minimum": 1, "title": "T"}
    before = json.dumps(schema)
    assert rewrite_schema(schema, param="p").root == {"type": "number", "exclusiveMinimum": 1}
    assert json.dumps(schema) == before


@pytest.mark.parametrize("text", ["", "[1", "3", '"a"', "null", "[" * 100_000, '{"a":' * 5000])
def test_what_is_not_a_schema_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^p: "):
        read_schema(text, param="p")


def test_a_schema_above_the_limits_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="bytes; at most"):
        read_schema(json.dumps("x" * MAX_SCHEMA_BYTES), param="p")
    deep: Any = {}
    for _ in range(MAX_DEPTH + 1):
        deep = {"items": deep}
    with pytest.raises(SchemaRefusedError, match="nested deeper"):
        rewrite_schema(deep, param="p")
    with pytest.raises(SchemaRefusedError, match="subschemas"):
        rewrite_schema({"anyOf": [{}] * 6000}, param="p")
    with pytest.raises(SchemaRefusedError, match="constants"):
        rewrite_schema({"enum": list(range(30_000))}, param="p")
    with pytest.raises(SchemaRefusedError, match="nested deeper"):
        rewrite_schema({"const": json.loads("[" * 60 + "]" * 60)}, param="p")
