"""The one builder of requests: what it accepts, normalises, refuses, and never mutates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.errors import ConfigurationError, PocketLLMError, UnsupportedFeatureError
from pocketllm.protocol import (
    chat_call,
    chat_request,
    completion_request,
    flatten_content,
    normalize_messages,
    normalize_tools,
    prompt_requests,
    split_prompts,
)
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Capabilities

FULL = Capabilities(
    name="full", max_model_len=64, per_request_sampling=True, per_request_top_k=True, supports_logprobs=True,
    supports_structured_outputs=True, supports_penalties=True, supports_logit_bias=True,
)  # fmt: skip
BARE = Capabilities(name="bare", max_model_len=64, temperature=0.7)
USER = [{"role": "user", "content": "hi"}]


class TestMessages:
    def test_content_in_every_shape_becomes_text(self) -> None:
        assert flatten_content(None, "m") == ""
        assert flatten_content("a", "m") == "a"
        assert (
            flatten_content([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"], "m") == "a\nb\nc"
        )
        assert flatten_content([{"type": "refusal", "refusal": "no"}], "m") == "no"

    def test_parts_that_are_not_text_are_refused_by_place(self) -> None:
        image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
        with pytest.raises(UnsupportedFeatureError, match=r"messages\[0\].content\[0\] has type 'image_url'") as caught:
            normalize_messages(image)
        assert caught.value.param == "messages"

    def test_roles_and_fields(self) -> None:
        messages = [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": "x", "name": "ann", "unknown": 1},
            {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [
                {"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "function", "name": "f", "content": "1"},
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "2"}]},
        ]  # fmt: skip
        before = copy.deepcopy(messages)
        normal = normalize_messages(messages)
        assert messages == before
        assert [message["role"] for message in normal] == ["system", "user", "assistant", "tool", "tool"]
        assert normal[1] == {"role": "user", "content": "x", "name": "ann"}
        assert normal[2]["reasoning_content"] == "hm"
        assert normal[2]["content"] == ""
        assert normal[2]["tool_calls"][0]["type"] == "function"
        normal[2]["tool_calls"][0]["function"]["name"] = "changed"
        assert messages == before

    @pytest.mark.parametrize(
        "messages, match",
        [
            ([], "non-empty"), ("hi", "non-empty"), (None, "missing"), ([5], r"messages\[0\] is int"),
            ([{"content": "x"}], r"messages\[0\].role"), ([{"role": "king", "content": "x"}], "'king' is unknown"),
            ([{"role": "user", "content": 5}], r"messages\[0\].content is int"),
            ([{"role": "user", "content": [{"text": "x"}]}], "not a part with a type"),
            ([{"role": "user", "content": [{"type": "text"}]}], "has no text"),
            ([{"role": "user", "content": "x", "name": 5}], "name is not a string"),
            ([{"role": "assistant", "tool_calls": "x"}], "a list was expected"),
            ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], r"function\.name"),
            ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}], "neither a JSON"),
            ([{"role": "assistant", "reasoning_content": 5}], "reasoning_content"),
        ],
    )  # fmt: skip
    def test_malformed_messages_are_named(self, messages: Any, match: str) -> None:
        with pytest.raises(ConfigurationError, match=match) as caught:
            chat_request({"messages": messages})
        assert caught.value.param == "messages"


class TestTools:
    def test_definitions_are_copied(self) -> None:
        tools = [{"function": {"name": "f", "parameters": {"type": "object"}}}]
        normal = normalize_tools(tools)
        assert normal[0]["type"] == "function"
        assert "type" not in tools[0]

    @pytest.mark.parametrize("tools", ["x", [5], [{"type": "web"}], [{"type": "function"}],
        [{"type": "function", "function": {}}], [{"function": {"name": ""}}],
        [{"function": {"name": "f", "parameters": []}}]])  # fmt: skip
    def test_malformed_definitions_are_named(self, tools: Any) -> None:
        with pytest.raises(ConfigurationError) as caught:
            chat_request({"messages": USER, "tools": tools})
        assert caught.value.param == "tools"


class TestThinking:
    @pytest.mark.parametrize(
        "fields, mode, effort",
        [
            ({}, "chat", None),
            ({"reasoning_effort": "low"}, "thinking", "low"),
            ({"reasoning": {"effort": "high"}, "reasoning_effort": "low"}, "thinking", "high"),
            ({"reasoning": {}}, "thinking", None),
            ({"reasoning": True}, "thinking", None),
            ({"reasoning": False}, "chat", None),
            ({"reasoning": {"enabled": False}}, "chat", None),
            ({"reasoning_effort": "none"}, "chat", None),
            ({"reasoning_effort": "frantic"}, "thinking", None),
            ({"thinking_mode": "chat", "reasoning_effort": "low"}, "chat", "low"),
            ({"thinking_mode": "thinking"}, "thinking", None),
        ],
    )
    def test_mode_and_effort(self, fields: dict[str, Any], mode: str, effort: str | None) -> None:
        metadata = chat_request({"messages": USER, **fields}).metadata
        assert metadata["thinking_mode"] == mode
        assert metadata.get("reasoning_effort") == effort

    @pytest.mark.parametrize("fields", [{"thinking_mode": "deep"}, {"reasoning": 5}, {"reasoning_effort": 5},
        {"add_generation_prompt": "yes"}, {"drop_thinking": 1}, {"chat_template_kwargs": []},
        {"chat_template_kwargs": {"messages": []}}])  # fmt: skip
    def test_malformed_values_are_named(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError) as caught:
            chat_request({"messages": USER, **fields})
        assert caught.value.param == next(iter(fields))


class TestSampling:
    def test_max_completion_tokens_wins_and_null_is_absent(self) -> None:
        body = {"messages": USER, "max_tokens": 5, "max_completion_tokens": 7, "temperature": None, "stop": ["", "x"]}
        before = copy.deepcopy(body)
        params = chat_request(body, FULL).sampling_params
        assert (params.max_tokens, params.temperature, params.stop) == (7, 0.0, ("x",))
        assert body == before

    def test_an_absent_temperature_is_the_one_in_force(self) -> None:
        assert chat_request({"messages": USER}, BARE).sampling_params.temperature == 0.7
        assert chat_request({"messages": USER}, FULL).sampling_params.temperature == 0.0
        assert prompt_requests("x", None, None, BARE)[0].sampling_params.temperature == 0.7
        explicit = SamplingParams(temperature=0.2)
        assert chat_call(USER, explicit, BARE).sampling_params is explicit

    def test_completions_count_log_probabilities(self) -> None:
        (request,) = completion_request({"prompt": "x", "logprobs": 3}, FULL)
        assert (request.sampling_params.logprobs, request.sampling_params.top_logprobs) == (True, 3)
        (request,) = completion_request({"prompt": "x", "logprobs": 0}, FULL)
        assert (request.sampling_params.logprobs, request.sampling_params.top_logprobs) == (True, 0)

    def test_response_format_is_checked_and_copied(self) -> None:
        schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
        request = chat_request({"messages": USER, "response_format": schema}, FULL)
        assert request.sampling_params.response_format == schema
        for bad in ({"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}, "json"):
            with pytest.raises(ConfigurationError) as caught:
                chat_request({"messages": USER, "response_format": bad}, FULL)
            assert caught.value.param == "response_format"
        with pytest.raises(UnsupportedFeatureError):
            chat_request({"messages": USER, "response_format": schema}, BARE)

    def test_request_ids(self) -> None:
        assert chat_request({"messages": USER, "request_id": "mine"}).request_id == "mine"
        assert chat_request({"messages": USER}).request_id.startswith("req-")
        ids = [request.request_id for request in completion_request({"prompt": ["a", "b"], "request_id": "mine"})]
        assert ids == ["mine", "mine#1"]
        for bad in ("", "a\nb", "x" * 300, 5):
            with pytest.raises(ConfigurationError):
                chat_request({"messages": USER, "request_id": bad})


class TestPrompts:
    def test_shapes(self) -> None:
        assert split_prompts("a") == ["a"]
        assert split_prompts(["a", "b"]) == ["a", "b"]
        assert split_prompts([1, 2]) == [(1, 2)]
        assert split_prompts([[1], (2, 3)]) == [(1,), (2, 3)]
        assert split_prompts(["a", [1]]) == ["a", (1,)]

    def test_the_fallback_prompt_is_there_for_tokenizers_without_a_template(self) -> None:
        assert chat_request({"messages": USER}).prompt == "user: hi\nassistant:"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["messages", "prompt", "tools", "stop", "n", "temperature", "logprobs", "top_logprobs", "response_format",
     "reasoning", "reasoning_effort", "thinking_mode", "request_id", "chat_template_kwargs", "seed", "max_tokens",
     "logit_bias", "tool_choice", "stream_options", "stop_token_ids"]
)  # fmt: skip


def _status(call: Callable[[], object]) -> int:
    try:
        call()
    except PocketLLMError as error:
        return error.status
    return 200


@given(st.dictionaries(FIELDS, JSON, max_size=6), st.sampled_from([None, FULL, BARE]))
def test_any_body_gives_a_request_or_an_error_with_a_status_below_500(
    body: dict[str, Any], capabilities: Capabilities | None
) -> None:
    for build in (chat_request, completion_request):
        status = _status(lambda build=build: build({"messages": USER, "prompt": "x", **body}, capabilities))
        assert 200 <= status < 500
