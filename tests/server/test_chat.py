from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from pocketllm.errors import QueueFullError
from pocketllm.types import Constraint
from pocketllm_server.answers import chat, choices
from tests.server.fake_llm import FIXED, GUIDE, FakeLLM, Script
from tests.server.field_values import TOOL
from tests.server.http_app import CHAT, HELLO, client_of, events_of


async def test_plain_answer_has_openai_shape() -> None:
    async with client_of(FakeLLM()) as client:
        response = await client.post(CHAT, json={**HELLO, "request_id": "mine"})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == "tiny"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, world!"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"]["completion_tokens"] == 5  # four that are text, and the stop token
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 5


async def test_fields_reach_the_request() -> None:
    model = FakeLLM()
    fields = {
        "max_tokens": 9, "max_completion_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 11,
        "stop": ["", "END"], "n": 2, "request_id": "r1", "min_p": 0.1, "frequency_penalty": 0.5,
        "logit_bias": {"5": -1}, "min_tokens": 1, "ignore_eos": True, "stop_token_ids": [4], "user": "me",
        "model": "another", "thinking_mode": "thinking", "reasoning_effort": "high", "seed_unknown": 1,
        "timeout": 9, "priority": 4, "cache_salt": "salt", "structured_outputs": {"choice": ["a", "b"]},
        "tool_call_streaming": "eager", "parallel_tool_calls": False, "tools": [TOOL],
    }  # fmt: skip
    async with client_of(model) as client:
        response = await client.post(CHAT, json={**HELLO, **fields})
    assert response.status_code == 200, response.text
    (request,) = model.requests
    params = request.sampling_params
    assert request.request_id == "r1"
    assert params.max_tokens == 3  # the newer name wins
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.5, 0.9, 7, 11)
    assert (params.stop, params.n, params.min_p, params.frequency_penalty) == (("END",), 2, 0.1, 0.5)
    assert (params.logit_bias, params.min_tokens, params.ignore_eos) == ({5: -1.0}, 1, True)
    assert params.stop_token_ids == (4,)
    assert request.metadata["messages"][0]["content"] == "Hi"
    assert request.metadata["thinking_mode"] == "thinking"
    assert request.metadata["reasoning_effort"] == "high"
    assert (request.deadline_s, request.priority, request.cache_salt) == (9.0, 4, "salt")
    assert request.constraint == Constraint("choice", '["a","b"]')
    assert request.metadata["tool_call_streaming"] == "eager"
    assert request.metadata["parallel_tool_calls"] is False
    assert request.metadata["tools"] == [TOOL]
    assert response.headers["x-pocketllm-ignored-fields"] == "seed_unknown"
    assert response.json()["model"] == "tiny"


async def test_a_field_that_is_null_counts_as_absent() -> None:
    model = FakeLLM(capabilities=GUIDE)
    nulls = dict.fromkeys(("temperature", "stop", "n", "logit_bias", "echo", "tool_choice", "seed", "stream"))
    async with client_of(model) as client:
        response = await client.post(CHAT, json={**HELLO, **nulls})
    assert response.status_code == 200, response.text
    assert model.requests[0].sampling_params.temperature == 0.0


async def test_reasoning_and_tool_calls_are_forwarded() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    model = FakeLLM(Script(texts=("",), reasoning="because", tool_calls=(call,), finish="tool_calls"))
    async with client_of(model) as client:
        whole = (await client.post(CHAT, json=HELLO)).json()["choices"][0]
        streamed = events_of((await client.post(CHAT, json={**HELLO, "stream": True})).text)
    assert whole["message"] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "because",
        "tool_calls": [call],
    }
    assert whole["finish_reason"] == "tool_calls"
    deltas = [event["choices"][0]["delta"] for event in streamed]
    indexed = {"index": 0, **call}  # clients put the pieces of a streamed call together by its index
    assert deltas == [{"role": "assistant"}, {"reasoning_content": "because"}, {"tool_calls": [indexed]}, {}]


async def test_stream_adds_up_to_the_plain_answer() -> None:
    async with client_of(FakeLLM()) as client:
        response = await client.post(CHAT, json={**HELLO, "stream": True})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.text)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant"}
    assert {event["id"] for event in events} == {events[0]["id"]}
    assert all(event["object"] == "chat.completion.chunk" and event["model"] == "tiny" for event in events)
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == "Hello, world!"
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["stop"]
    assert all("usage" not in event for event in events)


async def test_stream_can_carry_usage_where_declared() -> None:
    body = {**HELLO, "stream": True, "stream_options": {"include_usage": True}}
    async with client_of(FakeLLM()) as client:
        events = events_of((await client.post(CHAT, json=body)).text)
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 5


async def test_choices_of_a_stream_are_interleaved() -> None:
    async with client_of(FakeLLM()) as client:
        body = {**HELLO, "n": 3, "temperature": 1}
        whole = (await client.post(CHAT, json=body)).json()
        events = events_of((await client.post(CHAT, json={**body, "stream": True})).text)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert whole["usage"]["completion_tokens"] == 15
    indices = [event["choices"][0]["index"] for event in events]
    assert indices[3:9] == [0, 1, 2, 0, 1, 2]
    ends = [event["choices"][0]["index"] for event in events if event["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]


async def test_log_probabilities_sit_beside_the_message() -> None:
    async with client_of(FakeLLM(Script(texts=("é", "b")))) as client:
        body = {**HELLO, "logprobs": True, "top_logprobs": 2}
        content = (await client.post(CHAT, json=body)).json()["choices"][0]["logprobs"]["content"]
        events = events_of((await client.post(CHAT, json={**body, "stream": True})).text)
    assert [entry["token"] for entry in content] == ["é", "b"]
    assert content[0]["bytes"] == [0xC3, 0xA9]
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2]
    streamed = [e for event in events for e in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == content


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"stop": 5}, "stop"),
    ({"stop": ["a", 1]}, "stop"),
    ({"logprobs": 2}, "logprobs"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
    ({"logprobs": True, "stream": True}, "logprobs"),
    ({"frequency_penalty": 0.1}, "frequency_penalty"),
    ({"presence_penalty": -1}, "presence_penalty"),
    ({"logit_bias": {"1": 5}}, "logit_bias"),
    ({"tool_choice": "none"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "yaml"}}, "response_format"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": "2"}, "n"),
    ({"n": True}, "n"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"seed": 0.5}, "seed"),
    ({"min_p": 0.5}, "min_p"),
    ({"repetition_penalty": 1.2}, "repetition_penalty"),
    ({"min_tokens": 3}, "min_tokens"),
    ({"ignore_eos": True}, "ignore_eos"),
    ({"stop_token_ids": [3]}, "stop_token_ids"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"audio": {}}, "audio"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"stream": "yes"}, "stream"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [{"content": "no role"}]}, "messages"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"request_id": ""}, "request_id"),
    ({"request_id": "a b"}, "request_id"),
    ({"request_id": 7}, "request_id"),
]


@pytest.mark.parametrize("fields, param", REFUSED, ids=lambda value: json.dumps(value)[:40])
async def test_values_that_would_change_the_answer_are_refused(fields: dict[str, Any], param: str) -> None:
    model = FakeLLM(capabilities=GUIDE)
    async with client_of(model) as client:
        response = await client.post(CHAT, json={**HELLO, **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["code"] is None
    assert f'"{param.split(".")[0]}' in error["message"] or param in error["message"]
    assert model.requests == []


NEUTRAL: list[dict[str, Any]] = [
    {"logprobs": False},
    {"logprobs": False, "top_logprobs": 0},
    {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1},
    {"stop": []},
    {"stop": ["", ""]},
    {"stop": ""},
    {"logit_bias": {}},
    {"tool_choice": "auto", "parallel_tool_calls": True},
    {"stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": {"include_usage": False}},
    {"response_format": {"type": "text"}},
    {"n": 1, "min_p": 0, "min_tokens": 0, "ignore_eos": False, "stop_token_ids": []},
    {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "flex", "model": "gpt-4"},
    {"modalities": ["text"], "functions": [], "function_call": "auto"},
    {"a_field_nobody_documents": [1, 2]},
]


@pytest.mark.parametrize("fields", NEUTRAL, ids=lambda value: json.dumps(value)[:40])
async def test_neutral_and_inert_values_are_accepted(fields: dict[str, Any]) -> None:
    async with client_of(FakeLLM(capabilities=GUIDE)) as client:
        response = await client.post(CHAT, json={**HELLO, **fields})
    assert response.status_code == 200, response.text


async def test_the_guides_refusal_byte_for_byte() -> None:
    async with client_of(FakeLLM(capabilities=GUIDE)) as client:
        response = await client.post(CHAT, json={**HELLO, "stop": 5})
    assert response.content == (
        b'{"error":{"message":"\\"stop\\" = 5 is not supported by this server: a stop sequence is a string, or a list '
        b'of strings, and this value is neither. Send \\"stop\\" as a string or an array of strings.",'
        b'"type":"invalid_request_error","param":"stop","code":null}}'
    )


async def test_an_engine_that_fixes_its_sampling_refuses_other_values() -> None:
    async with client_of(FakeLLM(capabilities=FIXED)) as client:
        absent = await client.post(CHAT, json=HELLO)
        same = await client.post(CHAT, json={**HELLO, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "seed": 3})
        assert (absent.status_code, same.status_code) == (200, 200), absent.text + same.text
        for name, value in (("temperature", 0.8), ("top_p", 0.5), ("top_k", 5), ("seed", 4), ("n", 2)):
            other = await client.post(CHAT, json={**HELLO, name: value})
            assert other.status_code == 400
            assert other.json()["error"]["param"] == name


async def test_failure_of_a_plain_request_is_a_500() -> None:
    async with client_of(FakeLLM(Script(fail_after=2))) as client:
        response = await client.post(CHAT, json=HELLO)
    assert response.status_code == 500
    assert "on fire" in response.json()["error"]["message"]
    assert response.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("script, words", [(Script(fail_after=2), "on fire"), (Script(raise_after=2), "server failed")])
async def test_failure_in_mid_stream_is_an_event_and_still_ends(script: Script, words: str) -> None:
    async with client_of(FakeLLM(script)) as client:
        response = await client.post(CHAT, json={**HELLO, "stream": True})
    assert response.status_code == 200
    *chunks, last = events_of(response.text)
    assert words in last["error"]["message"]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == "Hello,"


@pytest.mark.parametrize("stream", [False, True])
async def test_full_queue_is_a_429_before_anything_is_sent(stream: bool) -> None:
    model = FakeLLM()
    model.refusal = QueueFullError("full")
    async with client_of(model) as client:
        response = await client.post(CHAT, json={**HELLO, "stream": stream})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["code"] == "queue_full"


@pytest.mark.parametrize(
    "choice, metadata",
    [
        ("auto", {"tools": [TOOL]}),
        ("none", {"tool_choice": "none"}),
        ("required", {"tools": [TOOL], "tool_choice": "required"}),
        ({"type": "function", "function": {"name": "f"}}, {"tools": [TOOL], "tool_choice": {"name": "f"}}),
        ({"type": "function", "name": "f"}, {"tools": [TOOL], "tool_choice": {"name": "f"}}),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"function": {"name": "f"}}]}},
            {"tools": [TOOL], "tool_choice": "required"},
        ),
    ],
)
async def test_tool_choice_reaches_the_prompt(choice: Any, metadata: dict[str, Any]) -> None:
    model = FakeLLM()
    async with client_of(model) as client:
        response = await client.post(CHAT, json={**HELLO, "tools": [TOOL], "tool_choice": choice})
    assert response.status_code == 200, response.text
    kept = {key: value for key, value in model.requests[0].metadata.items() if key in ("tools", "tool_choice")}
    assert kept == metadata


async def test_two_restrictions_of_one_answer_are_refused() -> None:
    structured = {"structured_outputs": {"regex": "a"}}
    for fields, param in (
        ({**structured, "response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs"),
        ({**structured, "tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ):
        async with client_of(FakeLLM()) as client:
            response = await client.post(CHAT, json={**HELLO, **fields})
        assert response.status_code == 400, fields
        assert response.json()["error"]["param"] == param


async def test_reasoning_is_answered_in_both_spellings() -> None:
    model = FakeLLM(Script(reasoning="because"))
    async with client_of(model) as client:
        body = {**HELLO, "reasoning_field": "both"}
        message = (await client.post(CHAT, json=body)).json()["choices"][0]["message"]
        streamed = events_of((await client.post(CHAT, json={**body, "stream": True})).text)
        plain = (await client.post(CHAT, json=HELLO)).json()["choices"][0]["message"]
    assert (message["reasoning"], message["reasoning_content"]) == ("because", "because")
    assert {"reasoning_content": "because", "reasoning": "because"}.items() <= streamed[1]["choices"][0][
        "delta"
    ].items()
    assert "reasoning" not in plain


async def test_token_ids_are_returned_where_asked() -> None:
    body = {"messages": [{"role": "user", "content": "one two"}], "return_token_ids": True, "n": 2, "temperature": 1}
    async with client_of(FakeLLM()) as client:
        whole = (await client.post(CHAT, json=body)).json()
        events = events_of((await client.post(CHAT, json={**body, "stream": True})).text)
    assert whole["prompt_token_ids"] == events[0]["prompt_token_ids"] == [0, 1, 2, 3]
    assert [choice["token_ids"] for choice in whole["choices"]] == [[0, 1, 2, 3]] * 2
    assert sum("prompt_token_ids" in event for event in events) == 1
    ids: dict[int, list[int]] = {0: [], 1: []}
    for event in events:
        (choice,) = event["choices"]
        ids[choice["index"]] += choice.get("token_ids", [])
    assert ids == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}


async def test_usage_may_be_asked_for_in_every_chunk() -> None:
    body = {**HELLO, "stream": True, "stream_options": {"continuous_usage_stats": True, "include_usage": True}}
    async with client_of(FakeLLM()) as client:
        events = events_of((await client.post(CHAT, json=body)).text)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == [0, 1, 2, 3, 4, 4, 5]  # the role, four tokens, the end, and the counts with the stop token
    assert {event["usage"]["prompt_tokens"] for event in events} == {3}
    assert events[-1]["choices"] == []


async def test_fields_nobody_documents_are_named_once() -> None:
    fields = {"temprature": 1, "a,b": 2, "é": 3, "nothing": None, "stream_options": {"odd": 1}}
    for stream in (False, True):
        async with client_of(FakeLLM()) as client:
            response = await client.post(CHAT, json={**HELLO, **fields, "stream": stream})
        assert response.status_code == 200
        assert response.headers["x-pocketllm-ignored-fields"] == "temprature, a%2Cb, %C3%A9, stream_options.odd"
    many = {f"field_{number}": 1 for number in range(500)}
    async with client_of(FakeLLM()) as client:
        response = await client.post(CHAT, json={**HELLO, **many})
    assert response.headers["x-pocketllm-ignored-fields"].endswith("field_31, and 468 more")


async def test_strict_mode_refuses_unknown_fields() -> None:
    model = FakeLLM()
    async with client_of(model, strict_fields=True) as client:
        response = await client.post(CHAT, json={**HELLO, "temprature": 1})
        known = await client.post(CHAT, json={**HELLO, "temperature": 1})
    assert (response.status_code, known.status_code) == (400, 200)
    assert response.json()["error"]["param"] == "temprature"
    assert '"temperature"' in response.json()["error"]["message"]
    assert len(model.requests) == 1


@pytest.mark.parametrize("fields", [{}, {"logprobs": True}])
async def test_each_event_of_a_stream_is_encoded_once(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []

    def encode(value: Any) -> bytes:
        encoded.append(value)
        return msgspec.json.encode(value)

    for module in (chat, choices):
        monkeypatch.setattr(module, "encode", encode)
    texts = tuple(f"piece {index} " for index in range(50))
    async with client_of(FakeLLM(Script(texts=texts))) as client:
        response = await client.post(CHAT, json={**HELLO, **fields, "stream": True})
    chunks = events_of(response.text)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "".join(texts)
    assert [value for value in encoded if value in texts] == list(texts)
    # Beside the texts and their log probabilities: what all chunks share and the finish reason.
    assert len(encoded) == len(texts) * (1 + len(fields)) + 2
