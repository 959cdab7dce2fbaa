"""What templates see of a conversation, and what is refused before they see it."""

from __future__ import annotations

from collections import ChainMap
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm.text.template_values import plain_copy, template_messages

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(value=JSON)
def test_copy_is_equal_and_shares_nothing_mutable(value: Any) -> None:
    copied = plain_copy(value, "tools")
    assert copied == value
    assert not _containers(copied) & _containers(value)


def _containers(value: object) -> set[int]:
    if isinstance(value, dict):
        return {id(value)}.union(*(_containers(child) for child in value.values()))
    if isinstance(value, list):
        return {id(value)}.union(*(_containers(child) for child in value))
    return set()


def test_other_mappings_and_sequences_become_plain() -> None:
    value = plain_copy(MappingProxyType({"a": (1, ChainMap({"b": 2}))}), "tools")
    assert value == {"a": [1, {"b": 2}]}
    assert type(value["a"][1]) is dict


@pytest.mark.parametrize(
    "content, text",
    [
        (None, ""),
        ("x", "x"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (["a", {"text": "b"}], "a\nb"),
        ([], ""),
    ],
)
def test_content_parts_reach_templates_as_text(content: Any, text: str) -> None:
    assert template_messages([{"role": "user", "content": content}]) == [{"role": "user", "content": text}]


def test_missing_content_is_empty_and_null_fields_are_left_out() -> None:
    message = {"role": "assistant", "tool_calls": None, "name": None, "reasoning_content": "r"}
    assert template_messages([message]) == [{"role": "assistant", "content": "", "reasoning_content": "r"}]


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ('{"a": 1}', {"a": 1}),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
        ("", {}),
        ("  ", {}),
        ("not json", {"arguments": "not json"}),
        ("[1]", {"arguments": "[1]"}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ({"a": 1}, {"a": 1}),
        ("[" * 100_000, {"arguments": "[" * 100_000}),
        ('{"a":' * 90 + "1" + "}" * 90, {"arguments": '{"a":' * 90 + "1" + "}" * 90}),
    ],
    ids=range(10),
)
def test_arguments_reach_templates_as_a_mapping(arguments: Any, expected: dict[str, Any]) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call, {"name": "g", "arguments": arguments}]}]
    wrapped, bare = template_messages(messages)[0]["tool_calls"]
    assert wrapped["function"]["arguments"] == bare["arguments"] == expected
    assert call["function"] == {"name": "f", "arguments": arguments}


@pytest.mark.parametrize(
    "messages, words",
    [
        ("hello", "must be a list of messages"),
        (5, "must be a list of messages"),
        (["hello"], r"messages\[0\] is of type str"),
        ([{"content": "x"}], r"messages\[0\].role is of type NoneType"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content is of type int"),
        ([{"role": "user", "content": [5]}], r"messages\[0\].content\[0\] is of type int"),
        ([{"role": "user", "content": b"x"}], "type bytes"),
        ([{"role": "user", "content": {"type": "text", "text": "x"}}], r"content is of type dict"),
        ([{"role": "user", 5: "x"}], "key 5"),
    ],
)
def test_malformed_messages_are_named(messages: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        template_messages(messages)
    assert caught.value.param == "messages"


def test_deep_and_cyclic_values_are_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(ConfigurationError, match="nested more than 64 levels"):
        plain_copy(cycle, "tools")


def test_other_parts_are_unsupported() -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"messages\[0\].content\[0\] is of type 'input_audio'"):
        template_messages([{"role": "user", "content": [{"type": "input_audio"}]}])
