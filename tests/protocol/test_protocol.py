"""The one builder of requests: what it accepts, normalises, refuses, and never mutates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.errors import ConfigurationError, PocketLLMError, UnsupportedFeatureError
from pocketllm.fields.requests import check_request, effective_temperature
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
from pocketllm.types import Capabilities, Constraint, GenerationRequest

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

    def test_known_roles_and_fields_of_messages_are_kept(self) -> None:
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
            ([{"content": "x"}], r"messages\[0\].role"), ([{"role": "king", "content": "x"}], '"king" is unknown'),
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
    def test_tool_definitions_are_copied_and_not_changed(self) -> None:
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
    def test_thinking_fields_decide_the_mode_and_the_effort(
        self, fields: dict[str, Any], mode: str, effort: str | None
    ) -> None:
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

    def test_an_absent_temperature_is_told_from_an_explicit_zero(self) -> None:
        for request in (chat_request({"messages": USER}, BARE), prompt_requests("x", None, None)[0]):
            assert not request.sampling_params.temperature_given
            check_request(request, BARE)
            assert effective_temperature(request.sampling_params, BARE) == 0.7
            assert effective_temperature(request.sampling_params, FULL) == 0.0
        explicit = chat_request({"messages": USER, "temperature": 0}, BARE)
        with pytest.raises(UnsupportedFeatureError):
            check_request(explicit, BARE)
        params = SamplingParams(temperature=0.2)
        assert chat_call(USER, params, BARE).sampling_params is params

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

    def test_every_request_has_an_id_of_its_own(self) -> None:
        assert chat_request({"messages": USER, "request_id": "mine"}).request_id == "mine"
        assert chat_request({"messages": USER}).request_id.startswith("req-")
        ids = [request.request_id for request in completion_request({"prompt": ["a", "b"], "request_id": "mine"})]
        assert ids == ["mine", "mine#1"]

    def test_prompts_of_one_call_share_its_id(self) -> None:
        named = completion_request({"prompt": ["a", "b"], "request_id": "mine", "call_id": "theirs"})
        assert [request.call_id for request in named] == ["mine", "mine"]
        first, second = completion_request({"prompt": ["a", "b"]})
        assert first.call_id == second.call_id == first.request_id
        assert chat_request({"messages": USER, "request_id": "mine"}).call_id is None

    def test_a_bad_request_id_is_refused(self) -> None:
        for bad in ("", "a\nb", "x" * 300, 5):
            with pytest.raises(ConfigurationError):
                chat_request({"messages": USER, "request_id": bad})


class TestScheduling:
    def test_deadline_priority_and_salt_reach_the_request(self) -> None:
        body = {"messages": USER, "prompt": ["a", "b"], "timeout": 5, "priority": -3, "cache_salt": "s"}
        for request in (chat_request(body), *completion_request(body), chat_call(USER, None, FULL, timeout=5,
                        cache_salt="s")):  # fmt: skip
            assert (request.deadline_s, request.cache_salt) == (5.0, "s")
        assert [request.priority for request in completion_request(body)] == [-3, -3]

    @pytest.mark.parametrize("fields", [{"timeout": 0}, {"timeout": float("nan")}, {"timeout": float("inf")},
        {"timeout": True}, {"timeout": "5"}, {"priority": True}, {"priority": 2**31}, {"priority": 1.5},
        {"cache_salt": ""}, {"cache_salt": 5}])  # fmt: skip
    def test_wrong_values_are_named(self, fields: dict[str, Any]) -> None:
        for build in (chat_request, completion_request):
            with pytest.raises(ConfigurationError) as caught:
                build({"messages": USER, "prompt": "x", **fields})
            assert caught.value.param == next(iter(fields))

    def test_what_an_engine_does_not_declare_is_refused_behind_the_wire_too(self) -> None:
        for request, param in (
            (GenerationRequest(prompt="x", priority=1), "priority"),
            (GenerationRequest(prompt="x", metadata={"suffix": "y"}), "suffix"),
            (GenerationRequest(prompt="x", metadata={"tool_choice": "none"}), "tool_choice"),
            (GenerationRequest(prompt="x", metadata={"parallel_tool_calls": False}), "parallel_tool_calls"),
            (GenerationRequest(prompt="x", constraint=Constraint("regex", "a")), "structured_outputs"),
        ):
            with pytest.raises(UnsupportedFeatureError) as caught:
                check_request(request, Capabilities(name="bare", max_model_len=64, per_request_sampling=True))
            assert caught.value.param == param


class TestStructure:
    @pytest.mark.parametrize(
        "value, constraint",
        [
            ({}, None), ({"regex": None, "json_object": False}, None), ({"regex": "a+"}, Constraint("regex", "a+")),
            ({"choice": ["a", "é"]}, Constraint("choice", '["a","é"]')),
            ({"json_object": True}, Constraint("json_object", "")),
            ({"json": {"type": "object"}}, Constraint("json_schema", '{"type":"object"}')),
            ({"json": '{"type": "object"}'}, Constraint("json_schema", '{"type":"object"}')),
            ({"json": True}, Constraint("json_schema", "true")),
            ({"grammar": 'start: "a"'}, Constraint("grammar", 'start: "a"')),
        ],
    )  # fmt: skip
    def test_structured_outputs_become_a_constraint(self, value: Any, constraint: Constraint | None) -> None:
        assert chat_request({"messages": USER, "structured_outputs": value}).constraint == constraint
        (request,) = completion_request({"prompt": "x", "structured_outputs": value})
        assert request.constraint == constraint

    @pytest.mark.parametrize("value", ["a", [], {"xml": 1}, {"regex": 5}, {"regex": ""}, {"choice": []},
        {"choice": [""]}, {"choice": "ab"}, {"json": 5}, {"json": "{"}, {"json_object": 1},
        {"regex": "a", "grammar": "b"}])  # fmt: skip
    def test_malformed_structured_outputs_are_refused_by_name(self, value: Any) -> None:
        with pytest.raises(ConfigurationError) as caught:
            chat_request({"messages": USER, "structured_outputs": value})
        assert caught.value.param == "structured_outputs"

    def test_one_restriction_at_a_time(self) -> None:
        with pytest.raises(ConfigurationError, match="both restrict"):
            chat_request(
                {"messages": USER, "structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}
            )


class TestAnswers:
    def test_echo_without_new_tokens_scores_the_prompt(self) -> None:
        (request,) = completion_request({"prompt": "x", "echo": True, "logprobs": 2, "max_tokens": 0})
        params = request.sampling_params
        assert (params.prompt_logprobs, params.num_top_logprobs, params.max_tokens) == (True, 2, 1)
        assert request.metadata == {"echo": True, "score_only": True}
        (request,) = completion_request({"prompt": "x", "echo": True})
        assert not request.sampling_params.prompt_logprobs
        for body in ({"max_tokens": 0}, {"echo": False, "max_tokens": 0}, {"echo": True, "max_tokens": False}):
            with pytest.raises(ConfigurationError) as caught:
                completion_request({"prompt": "x", **body})
            assert caught.value.param == "max_tokens"

    def test_a_final_message_is_continued(self) -> None:
        messages = [*USER, {"role": "assistant", "content": "Well"}]
        metadata = chat_request({"messages": messages, "continue_final_message": True}).metadata
        assert (metadata["continue_final_message"], metadata["add_generation_prompt"]) == (True, False)
        for body in (
            {"messages": USER, "continue_final_message": True},
            {"messages": messages, "continue_final_message": True, "add_generation_prompt": True},
            {"messages": messages, "continue_final_message": 1},
        ):
            with pytest.raises(ConfigurationError) as caught:
                chat_request(body)
            assert caught.value.param == "continue_final_message"

    def test_ways_to_say_that_top_k_is_off(self) -> None:
        fixed = Capabilities(name="fixed", max_model_len=64, top_k=20)
        for value in (0, -1):
            assert chat_request({"messages": USER, "top_k": value}, FULL).sampling_params.top_k is None
            assert chat_request({"messages": USER, "top_k": value}, BARE).sampling_params.top_k is None
            with pytest.raises(UnsupportedFeatureError, match="uses top_k = 20") as caught:
                chat_request({"messages": USER, "top_k": value}, fixed)
            assert caught.value.param == "top_k"


class TestPrompts:
    def test_a_prompt_may_be_text_ids_or_lists_of_them(self) -> None:
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
     "logit_bias", "tool_choice", "stream_options", "stop_token_ids", "structured_outputs", "timeout", "priority",
     "cache_salt", "parallel_tool_calls", "continue_final_message", "echo", "suffix", "top_k", "tool_call_streaming"]
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
