from __future__ import annotations

import inspect

import msgspec
import pytest
from openai.resources.chat.completions import Completions as ChatResource
from openai.resources.completions import Completions as CompletionsResource

from pocketllm.errors import UnsupportedFeatureError
from pocketllm.fields import (
    BOTH,
    CHAT,
    COMPLETIONS,
    FIELDS,
    check_fields,
    describe,
    rows,
    shown,
    supported_fields,
    unknown_field,
)
from pocketllm.types import Capabilities
from pocketllm_server.wire.completions_request import ChatBody, CompletionBody
from tests.server.fake_llm import EVERYTHING, GUIDE

SHAPES = {CHAT: ChatBody, COMPLETIONS: CompletionBody}
CLIENTS = {CHAT: ChatResource, COMPLETIONS: CompletionsResource}
# Arguments of the client's method that are no fields of the body.
CLIENT_ONLY = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


@pytest.mark.parametrize("endpoint", BOTH)
def test_every_field_the_openai_client_can_send_has_a_row(endpoint: str) -> None:
    parameters = set(inspect.signature(CLIENTS[endpoint].create).parameters) - CLIENT_ONLY
    assert parameters - set(rows(endpoint)) == set()


@pytest.mark.parametrize("endpoint", BOTH)
def test_rows_and_wire_fields_are_the_same(endpoint: str) -> None:
    assert {field.name for field in msgspec.structs.fields(SHAPES[endpoint])} == set(rows(endpoint))


def test_a_field_has_one_row_per_endpoint() -> None:
    for endpoint in BOTH:
        names = [row.name for row in FIELDS if endpoint in row.endpoints]
        assert len(names) == len(set(names))


def test_every_row_of_the_field_table_is_complete() -> None:
    for row in FIELDS:
        assert row.doc.endswith("."), row.name
        assert bool(row.needs) == bool(row.instead) == bool(row.remedy), row.name
        assert not (row.inert and row.needs), row.name


def test_needs_are_capabilities_or_declared_nowhere() -> None:
    for row in FIELDS:
        assert not row.needs or row.needs in Capabilities.__struct_fields__ or row.needs == "nothing declares this"


@pytest.mark.parametrize("endpoint", BOTH)
def test_neutral_values_pass_the_wire_and_the_table(endpoint: str) -> None:
    types = {field.name: field.type for field in msgspec.structs.fields(SHAPES[endpoint])}
    for name, row in rows(endpoint).items():
        for value in row.neutral:
            msgspec.convert(value, types[name])
            check_fields({name: value}, endpoint, GUIDE)


def test_supported_fields_follow_the_capabilities() -> None:
    everything, guide = supported_fields(CHAT, EVERYTHING), supported_fields(CHAT, GUIDE)
    assert set(everything) - set(guide) == {
        "response_format", "structured_outputs", "frequency_penalty", "presence_penalty", "repetition_penalty",
        "logit_bias", "min_p", "min_tokens", "ignore_eos", "stop_token_ids", "tool_choice", "parallel_tool_calls",
        "priority",
    }  # fmt: skip
    assert "model" not in everything
    assert "functions" not in everything


def test_refusals_show_a_value_of_any_size() -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        check_fields({"suffix": "é" * 1_000_000}, COMPLETIONS, GUIDE)
    assert len(caught.value.message) < 400
    assert shown({"a": [1, "é"]}) == '{"a": [1, "é"]}'


def test_strict_refusals_name_the_nearest_field() -> None:
    error = unknown_field("temprature", CHAT)
    assert error.param == "temprature"
    assert 'Did you mean "temperature"?' in error.message
    assert "Did you mean" not in unknown_field("zzzzzz", CHAT).message
    assert len(unknown_field("x" * 100_000, CHAT).message) < 300


@pytest.mark.parametrize("endpoint", BOTH)
@pytest.mark.parametrize("key", ["json", "regex", "choice", "grammar"])
def test_other_spellings_of_constraints_point_to_the_one_that_is_served(endpoint: str, key: str) -> None:
    name = f"guided_{key}"
    for value in ("a+", {"type": "object"}, ["a", "b"]):
        with pytest.raises(UnsupportedFeatureError, match="not supported") as caught:
            check_fields({name: value}, endpoint, EVERYTHING)
        assert caught.value.param == name
        assert f'{{"structured_outputs": {{"{key}": …}}}}' in caught.value.message
    assert name not in supported_fields(endpoint, EVERYTHING)


def test_every_row_of_the_field_table_describes_itself() -> None:
    described = {describe(row)[0]: describe(row) for row in FIELDS if COMPLETIONS in row.endpoints}
    assert described["prompt"][1:3] == ("completions", "always")
    assert described["echo"][2] == "supports_prompt_logprobs; else only false"
    assert described["best_of"][2] == "never, but for 1"
    assert described["user"][2] == "accepted, inert"
