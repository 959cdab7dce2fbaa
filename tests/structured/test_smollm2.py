"""With a real vocabulary of 49,152 tokens."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest

from pocketllm.checkpoint import Tokenizer
from pocketllm.structured import compile_constraint
from pocketllm.structured.token_table import token_table
from pocketllm.types import Constraint
from tests.structured.sampling import accepts, allowed_ids, walk

SCHEMAS = [
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}}},
    {"type": "array", "items": {"enum": ["red", "green", 3, None]}, "minItems": 2, "maxItems": 4},
    {"anyOf": [{"type": "boolean"}, {"type": "number", "minimum": -2, "exclusiveMaximum": 7.5}]},
    {"type": "object", "patternProperties": {"^[a-z]{1,4}$": {"type": "boolean"}}, "additionalProperties": False},
    {"type": "string", "format": "date-time"},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_random_completions_under_a_schema_validate(schema: dict[str, object], smollm2_tokenizer: Tokenizer) -> None:
    compiled = compile_constraint(Constraint("json_schema", json.dumps(schema)), smollm2_tokenizer)
    num_ended = 0
    for seed in range(6):
        text = walk(compiled.matcher([2]), smollm2_tokenizer, [2], random.Random(seed), max_tokens=80)
        if text is not None:
            num_ended += 1
            jsonschema.validate(json.loads(text), schema)
    assert num_ended >= 2


def test_the_usual_tokens_of_an_answer_are_allowed(smollm2_tokenizer: Tokenizer) -> None:
    text = '{"name": "Ann Lee", "age": 42}'
    schema = json.dumps(SCHEMAS[0])
    matcher = compile_constraint(Constraint("json_schema", schema), smollm2_tokenizer).matcher([2])
    for token in smollm2_tokenizer.encode(text, add_bos=False):
        assert token in allowed_ids(matcher, smollm2_tokenizer.vocab_size)
        assert matcher.accept(token)
    assert allowed_ids(matcher, smollm2_tokenizer.vocab_size) == [2]


def test_control_tokens_match_no_text(smollm2_tokenizer: Tokenizer) -> None:
    matcher = compile_constraint(Constraint("regex", "(?s:.*)"), smollm2_tokenizer).matcher([2])
    ids = allowed_ids(matcher, smollm2_tokenizer.vocab_size)
    assert [token for token in ids if smollm2_tokenizer.is_special(token)] == [2]
    assert len(ids) > 48_000


def test_every_token_is_in_the_table(smollm2_tokenizer: Tokenizer) -> None:
    table = token_table(smollm2_tokenizer)
    assert token_table(smollm2_tokenizer) is table
    assert table.library.vocab_size == smollm2_tokenizer.vocab_size
    ids = smollm2_tokenizer.encode("Grüße, 日本! {}", add_bos=False)
    assert table.library.decode_bytes(ids) == "Grüße, 日本! {}".encode()
    compiled = compile_constraint(Constraint("regex", "Grüße, 日本! [{][}]"), smollm2_tokenizer)
    assert accepts(compiled.matcher([2]), ids)
