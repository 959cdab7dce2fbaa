from __future__ import annotations

import json
from typing import Any

import pytest

from pocketllm_server.wire.completions_logprobs import TextOffsets
from tests.server.fake_llm import ECHOING, GUIDE, FakeLLM, Script
from tests.server.http_app import COMPLETIONS, client_of, events_of


async def test_a_completion_has_the_shape_of_openais() -> None:
    async with client_of(FakeLLM()) as client:
        body = (await client.post(COMPLETIONS, json={"prompt": "Once", "max_tokens": 2})).json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": "Hello,", "logprobs": None, "finish_reason": "length"}]


@pytest.mark.parametrize(
    "prompt, wanted",
    [
        ("one", [("one", ())]),
        (["one", "two"], [("one", ()), ("two", ())]),
        ([1, 2, 3], [(None, (1, 2, 3))]),
        ([[1, 2], [3]], [(None, (1, 2)), (None, (3,))]),
    ],
)
async def test_a_prompt_may_have_every_documented_shape(
    prompt: Any, wanted: list[tuple[str | None, tuple[int, ...]]]
) -> None:
    model = FakeLLM()
    async with client_of(model) as client:
        body = (await client.post(COMPLETIONS, json={"prompt": prompt, "n": 2, "temperature": 1})).json()
        streamed = events_of((await client.post(COMPLETIONS, json={"prompt": prompt, "stream": True})).text)
    requests = model.requests[: len(wanted)]
    assert [(request.prompt, request.prompt_tokens) for request in requests] == wanted
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * len(wanted)))
    assert body["usage"]["completion_tokens"] == 10 * len(wanted)
    texts: dict[int, str] = {}
    for event in streamed:
        (choice,) = event["choices"]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == dict.fromkeys(range(len(wanted)), "Hello, world!")


async def test_stream_has_no_role_chunk() -> None:
    async with client_of(FakeLLM()) as client:
        events = events_of((await client.post(COMPLETIONS, json={"prompt": "x", "stream": True})).text)
    assert [event["choices"][0]["text"] for event in events] == ["Hello", ",", " world", "!", ""]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


async def test_log_probabilities_are_answered_in_both_spellings() -> None:
    async with client_of(FakeLLM(Script(texts=("ab", "c")))) as client:
        body = {"prompt": "x", "logprobs": 1}
        logprobs = (await client.post(COMPLETIONS, json=body)).json()["choices"][0]["logprobs"]
        none_ranked = (await client.post(COMPLETIONS, json={**body, "logprobs": 0})).json()["choices"][0]["logprobs"]
        events = events_of((await client.post(COMPLETIONS, json={**body, "stream": True})).text)
    assert logprobs["tokens"] == ["ab", "c"]
    assert logprobs["text_offset"] == [0, 2]
    assert logprobs["token_logprobs"] == [-0.5, -0.5]
    assert logprobs["top_logprobs"] == [{"ab": -0.5}, {"c": -0.5}]
    assert [entry["token"] for entry in logprobs["content"]] == ["ab", "c"]
    assert none_ranked["content"][0]["top_logprobs"] == []
    offsets = [o for event in events for o in (event["choices"][0]["logprobs"] or {"text_offset": []})["text_offset"]]
    assert offsets == [0, 2]


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1000]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [[1, "a"]]}, "prompt"),
        ({"prompt": ["x"] * 65, "n": 2, "temperature": 1}, "prompt"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": 1.5}, "logprobs"),
        ({"logprobs": 1, "stream": True}, "logprobs"),
        ({"top_logprobs": 0}, "top_logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"echo": True}, "echo"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
async def test_a_field_that_is_not_supported_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    model = FakeLLM(capabilities=GUIDE)
    async with client_of(model) as client:
        response = await client.post(COMPLETIONS, json={"prompt": "x", **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert model.active == {}


async def test_neutral_values_pass_an_engine_with_few_features() -> None:
    fields = {"best_of": 1, "suffix": "", "echo": False, "top_logprobs": None, "user": "u", "model": "x"}
    async with client_of(FakeLLM(capabilities=GUIDE)) as client:
        response = await client.post(COMPLETIONS, json={"prompt": "x", **fields})
    assert response.status_code == 200, response.text


async def test_echo_puts_the_prompt_in_front() -> None:
    body = {"prompt": ["ab cd", "ef gh"], "echo": True, "n": 2, "temperature": 1, "return_token_ids": True}
    async with client_of(FakeLLM(capabilities=ECHOING)) as client:
        whole = (await client.post(COMPLETIONS, json=body)).json()["choices"]
        events = events_of((await client.post(COMPLETIONS, json={**body, "stream": True})).text)
    texts = {0: "ab cdHello, world!", 1: "ab cdHello, world!", 2: "ef ghHello, world!", 3: "ef ghHello, world!"}
    assert {choice["index"]: choice["text"] for choice in whole} == texts
    assert [choice["prompt_token_ids"] for choice in whole] == [[0, 1]] * 4
    assert all(choice["token_ids"] == [0, 1, 2, 3] and choice["logprobs"] is None for choice in whole)
    streamed: dict[int, str] = {}
    ids: dict[int, list[int]] = {}
    for event in events:
        (choice,) = event["choices"]
        if choice["index"] not in streamed:
            assert choice["prompt_token_ids"] == whole[choice["index"]]["prompt_token_ids"]
        streamed[choice["index"]] = streamed.get(choice["index"], "") + choice["text"]
        ids[choice["index"]] = ids.get(choice["index"], []) + choice["token_ids"]
    assert streamed == texts
    assert set(map(tuple, ids.values())) == {(0, 1, 2, 3)}


async def test_echo_with_log_probabilities_of_the_prompt() -> None:
    body = {"prompt": [3, 4], "echo": True, "logprobs": 1}
    async with client_of(FakeLLM(Script(texts=("ab", "c")), ECHOING)) as client:
        whole = (await client.post(COMPLETIONS, json=body)).json()["choices"][0]
        events = events_of((await client.post(COMPLETIONS, json={**body, "stream": True})).text)
    logprobs = whole["logprobs"]
    assert whole["text"] == "w3 w4 abc"
    assert logprobs["tokens"] == ["w3 ", "w4 ", "ab", "c"]
    assert logprobs["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert logprobs["top_logprobs"] == [None, {"w4 ": -0.5}, {"ab": -0.5}, {"c": -0.5}]
    assert logprobs["text_offset"] == [0, 3, 6, 8]
    assert logprobs["content"][0] == {"token": "w3 ", "logprob": None, "bytes": list(b"w3 "), "top_logprobs": []}
    for name in logprobs:
        parts = [event["choices"][0]["logprobs"] for event in events]
        assert [item for part in parts if part for item in part[name]] == logprobs[name], name


async def test_a_prompt_is_scored_with_no_token_asked_for() -> None:
    body = {"prompt": [3, 4], "echo": True, "logprobs": 0, "max_tokens": 0, "return_token_ids": True}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    model = FakeLLM(capabilities=ECHOING)
    async with client_of(model) as client:
        answer = (await client.post(COMPLETIONS, json=body)).json()
        *events, last = events_of((await client.post(COMPLETIONS, json={**body, **options})).text)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == ("w3 w4 ", "length", [])
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5]
    assert answer["usage"]["completion_tokens"] == last["usage"]["completion_tokens"] == 0
    assert "".join(event["choices"][0]["text"] for event in events) == "w3 w4 "
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert model.requests[0].sampling_params.max_tokens == 1  # an engine takes at least one step


async def test_offsets_are_characters_whatever_the_tokens_are() -> None:
    offsets = TextOffsets()
    pieces = [b"a", "é".encode()[:1], "é".encode()[1:], "😊".encode()[:2], "😊".encode()[2:], b"b"]
    assert [offsets.place(list(piece)) for piece in pieces] == [0, 1, 1, 2, 2, 3]


async def test_a_suffix_reaches_the_prompt() -> None:
    model = FakeLLM()
    async with client_of(model) as client:
        assert (await client.post(COMPLETIONS, json={"prompt": "x", "suffix": "end"})).status_code == 200
    assert model.requests[0].metadata == {"suffix": "end"}
