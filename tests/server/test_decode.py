"""Bodies made to cost more than their bytes: refused by what they hold, before they are decoded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketllm_server.wire.decode import decode_object, has_more_values, is_quick
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
    assert not has_more_values(data, count + slack)
    if count > slack:
        assert has_more_values(data, count - 1 - slack)


@pytest.mark.parametrize("data", [b'"', b'"\\', b'{"a": "\\"', b"\\\\\\", b'[,"][,', b""])
def test_what_is_no_json_is_counted_without_an_error(data: bytes) -> None:
    assert has_more_values(data, 0) in (False, True)


def _body(item: bytes, count: int) -> bytes:
    return b'{"messages": [{"role": "user", "content": "Hi"}], "unknown": [' + b",".join([item] * count) + b"]}"


@pytest.mark.parametrize("item", [b"[]", b"{}", b"1", b'"a"', b'{"a":1}', b"[[[1]]]"])
def test_too_many_values_are_refused_and_as_many_as_allowed_are_not(item: bytes) -> None:
    assert decode_object(_body(item, 100), 1000)["unknown"] == [json.loads(item)] * 100
    with pytest.raises(HTTPError) as caught:
        decode_object(_body(item, 1001), 1000)
    assert caught.value.status == 413
    assert "max_json_values = 1000" in caught.value.message


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/responses", "/v1/messages", "/tokenize"])
async def test_every_endpoint_refuses_them(path: str) -> None:
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
