"""Messages, tools and tool choice in the form that templates and the prompt boundary get."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pocketllm.errors import ConfigurationError
from pocketllm.protocol.conversation import cut_at_mark, mark_final_message, normalize_messages
from pocketllm.protocol.tools import tool_spec

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
OTHER: dict[str, Any] = {"type": "function", "function": {"name": "g"}}


@pytest.mark.parametrize(
    "content, text",
    [
        ("21", "21"), (None, ""), ([], ""), ([{"type": "text", "text": "a"}, "b"], "a\nb"),
        ({"degrees": 21}, '{"degrees":21}'),
        ([{"degrees": 21}, 5], '[{"degrees":21},5]'), (21, "21"), (True, "true"), ({}, "{}"),
    ],
)  # fmt: skip
def test_a_tool_may_answer_in_any_shape(content: Any, text: str) -> None:
    (message,) = normalize_messages([{"role": "tool", "tool_call_id": "c", "content": content}])
    assert message == {"role": "tool", "tool_call_id": "c", "content": text}


def test_only_a_tools_message_may_hold_data() -> None:
    for content in ({"degrees": 21}, 21, [{"degrees": 21}]):
        with pytest.raises(ConfigurationError):
            normalize_messages([{"role": "user", "content": content}])
    with pytest.raises(ConfigurationError, match="cannot be written as JSON"):
        normalize_messages([{"role": "tool", "content": {"a": object()}}])


def test_the_older_spelling_of_a_call_in_a_history() -> None:
    history = [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}]
    (message,) = normalize_messages(history)
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]


def test_reasoning_under_either_name_null_being_absent() -> None:
    for fields in ({"reasoning": "hm"}, {"reasoning_content": "hm"}, {"reasoning_content": None, "reasoning": "hm"}):
        (message,) = normalize_messages([{"role": "assistant", "content": "a", **fields}])
        assert message["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    "fields, metadata",
    [
        ({}, {"tools": [TOOL, OTHER]}),
        ({"tool_choice": "auto", "parallel_tool_calls": True}, {"tools": [TOOL, OTHER]}),
        ({"tool_choice": "none"}, {"tool_choice": "none"}),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"tool_choice": "none"}),
        ({"parallel_tool_calls": False}, {"tools": [TOOL, OTHER], "parallel_tool_calls": False}),
        ({"tool_choice": "required"}, {"tools": [TOOL, OTHER], "tool_choice": "required"}),
        ({"tool_choice": TOOL}, {"tools": [TOOL, OTHER], "tool_choice": {"name": "f"}}),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [OTHER]}}, {"tools": [OTHER]}),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TOOL]}}},
            {"tools": [TOOL], "tool_choice": "required"},
        ),
    ],
)
def test_tool_choice_decides_which_tools_are_offered(fields: dict[str, Any], metadata: dict[str, Any]) -> None:
    body = {"tools": [TOOL, OTHER], **fields}
    before = copy.deepcopy(body)
    assert tool_spec(body).as_metadata() == metadata
    assert body == before


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": TOOL}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": OTHER}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "custom", "name": "f"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": [OTHER]}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": 5}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "none", "tools": [TOOL]}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [TOOL], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tools": [{"function": {"name": "f", "strict": "yes"}}]}, "tools"),
    ],
)
def test_wrong_choices_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        tool_spec(fields)
    assert caught.value.param == param


def test_a_final_message_is_left_open() -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Once upon "}]
    before = copy.deepcopy(messages)
    marked = mark_final_message(messages)
    assert messages == before
    rendered = "".join(f"<|{message['role']}|>{message['content'].strip()}<|end|>\n" for message in marked)
    # White space at the end of the text survives a template that strips.
    assert cut_at_mark(rendered) == "<|user|>x<|end|>\n<|assistant|>Once upon "
    with pytest.raises(ConfigurationError) as caught:
        cut_at_mark("<|user|>x<|end|>\n")
    assert caught.value.param == "continue_final_message"
