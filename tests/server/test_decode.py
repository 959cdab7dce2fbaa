"""Bodies made to cost more than their bytes: refused by what they hold, before they are decoded."""

from __future__ import annotations

import json
import traceback
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketllm.errors import ConfigurationError, PocketLLMError
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.service import Service
from pocketllm_server.wire.decode import (
    MAX_DEPTH,
    MAX_INT,
    MIN_INT,
    MalformedBodyError,
    check_amounts,
    decode_object,
    has_long_number,
    is_deeper,
    is_quick,
)
from pocketllm_server.wire.errors import HTTPError
from tests.server.fake_llm import FakeLLM
from tests.server.http_app import CHAT, COMPLETIONS, HELLO, client_of

MARKS = st.text(alphabet='[]{},:"\\ aé')
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | MARKS,
    lambda inner: st.lists(inner) | st.dictionaries(MARKS, inner),
    max_leaves=40,
)


def _num_values(value: Any) -> int:
    """Values inside and keys; an empty container takes the place of one."""
    if isinstance(value, list):
        return max(1, len(value)) + sum(map(_num_values, value))
    if isinstance(value, dict):
        return max(1, 2 * len(value)) + sum(map(_num_values, value.values()))
    return 0


@settings(max_examples=300)
@given(DOCUMENTS, st.integers(0, 3), st.booleans())
def test_the_count_is_of_values_and_not_of_text(value: Any, slack: int, as_ascii: bool) -> None:
    data = json.dumps({"x": value}, ensure_ascii=as_ascii).encode()
    count = _num_values({"x": value})
    assert not _is_too_much(data, 8 * (count + slack))  # lists and objects have an eighth
    if count > slack:
        assert _is_too_much(data, count - 1 - slack)


def _is_too_much(data: bytes, max_values: int) -> bool:
    try:
        check_amounts(data, max_values)
    except HTTPError:
        return True
    return False


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


@settings(max_examples=300)
@given(DOCUMENTS)
def test_the_depth_is_of_lists_and_objects_and_not_of_text(value: Any) -> None:
    data = json.dumps({"x": value}).encode()
    depth = _depth({"x": value})
    assert not is_deeper(data, depth)
    assert is_deeper(data, depth - 1)


@pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a":', "}")])
def test_the_deepest_that_is_allowed_and_one_more(opening: str, closing: str) -> None:
    def body(depth: int) -> bytes:
        return ('{"x":' + opening * (depth - 1) + "1" + closing * (depth - 1) + "}").encode()

    assert decode_object(body(MAX_DEPTH), 10_000)
    with pytest.raises(MalformedBodyError, match="nested more than 64 levels"):
        decode_object(body(MAX_DEPTH + 1), 10_000)


NUMBERS = st.integers(-(10**25), 10**25) | st.integers(-(2**64), 2**65) | st.floats(allow_nan=False) | st.text("0-+.e9")


@settings(max_examples=300)
@given(st.lists(NUMBERS))
def test_whole_numbers_of_more_than_64_bits_are_found_and_nothing_else(numbers: list[Any]) -> None:
    data = json.dumps({"x": numbers, "y": "9" * 30, "z": 1.5e300}).encode()
    assert has_long_number(data) == any(isinstance(one, int) and not MIN_INT <= one <= MAX_INT for one in numbers)


@pytest.mark.parametrize("text", ["0.1234567890123456789012", "1e-20", "12345678901234567890.5", "1E20"])
def test_a_number_with_a_fraction_may_be_long(text: str) -> None:
    assert not has_long_number(b'{"x": [' + text.encode() + b"]}")


@pytest.mark.parametrize("data", [b'"', b'"\\', b'{"a": "\\"', b"\\\\\\", b'[,"][,', b""])
def test_what_is_no_json_is_counted_without_an_error(data: bytes) -> None:
    assert _is_too_much(data, 0) in (False, True)


def _body(item: bytes, count: int) -> bytes:
    return b'{"messages": [{"role": "user", "content": "Hi"}], "unknown": [' + b",".join([item] * count) + b"]}"


@pytest.mark.parametrize("item", [b"[]", b"{}", b"1", b'"a"', b'{"a":1}', b"[[[1]]]"])
def test_too_many_values_are_refused_and_as_many_as_allowed_are_not(item: bytes) -> None:
    assert decode_object(_body(item, 40), 1000)["unknown"] == [json.loads(item)] * 40
    with pytest.raises(HTTPError) as caught:
        decode_object(_body(item, 1001), 1000)
    assert caught.value.status == 413
    assert "max_json_values = 1000" in caught.value.message


def test_lists_and_objects_have_a_limit_of_their_own() -> None:
    most = 1000 // 8 - 4  # the body's own are four
    assert len(decode_object(_body(b"[]", most), 1000)["unknown"]) == most
    with pytest.raises(HTTPError, match=r"more than 125 lists and objects: .* max_json_values = 1000") as caught:
        decode_object(_body(b"[]", most + 1), 1000)
    assert caught.value.status == 413


async def test_a_refusal_of_a_large_body_keeps_nothing_of_it() -> None:
    def read(data: bytes) -> None:
        held = [data]
        raise ConfigurationError(f"{len(held)} is wrong")

    with pytest.raises(PocketLLMError) as caught:
        await Service(FakeLLM(), ServerSettings()).read_large(read, b"x" * 100)
    frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert "read" not in frames
    assert "read_large" in frames


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/responses", "/v1/messages", "/tokenize"])
async def test_every_endpoint_refuses_too_many_json_values(path: str) -> None:
    async with client_of(FakeLLM(), max_json_values=1000) as client:
        response = await client.post(path, content=_body(b"[]", 2000), headers={"content-type": "application/json"})
        assert response.status_code == 413
        assert "max_json_values" in response.text
        assert (await client.post(CHAT, json=HELLO)).status_code == 200


def test_what_is_decoded_on_the_event_loop_is_small_in_both_ways() -> None:
    assert is_quick(_body(b"1", 1000))
    assert is_quick(b'{"prompt": "' + b"a" * 60_000 + b'"}')
    assert not is_quick(_body(b"[]", 10_000))
    assert not is_quick(b'{"prompt": "' + b"a" * 70_000 + b'"}')


async def test_a_long_text_full_of_marks_is_no_structure() -> None:
    async with client_of(FakeLLM(), max_json_values=1000) as client:
        text = '[{"a": 1, "b\\": [,,]}, ' * 2000
        response = await client.post(COMPLETIONS, json={"prompt": text})
    assert response.status_code == 200, response.text
