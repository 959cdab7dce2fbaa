from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.fake_llm import GUIDE, FakeLLM, Script
from tests.server.http_app import COMPLETIONS, client_of, events_of


async def test_plain_answer() -> None:
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
async def test_every_shape_of_prompt(prompt: Any, wanted: list[tuple[str | None, tuple[int, ...]]]) -> None:
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


async def test_log_probabilities_in_both_spellings() -> None:
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
async def test_refusals(fields: dict[str, Any], param: str) -> None:
    model = FakeLLM(capabilities=GUIDE)
    async with client_of(model) as client:
        response = await client.post(COMPLETIONS, json={"prompt": "x", **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert model.active == {}


async def test_neutral_values() -> None:
    fields = {"best_of": 1, "suffix": "", "echo": False, "top_logprobs": None, "user": "u", "model": "x"}
    async with client_of(FakeLLM(capabilities=GUIDE)) as client:
        response = await client.post(COMPLETIONS, json={"prompt": "x", **fields})
    assert response.status_code == 200, response.text
