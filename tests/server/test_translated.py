"""What the translated endpoints share: malformed bodies, acceptance, counters, and the order of what is checked."""

from __future__ import annotations

import asyncio
import copy
import random
from typing import Any

import httpx
import msgspec
import pytest

from pocketllm.errors import (
    BackendUnavailableError,
    ConfigurationError,
    ContextLengthError,
    QueueFullError,
    UnsupportedFeatureError,
)
from pocketllm_server.wire.dialect import check_rows, in_words_of, refused
from tests.fuzz.http_requests import mutate_value
from tests.server.fake_llm import EVERYTHING, FakeLLM, Script
from tests.server.http_app import client_of, until

ABLE = msgspec.structs.replace(EVERYTHING, supports_tool_choice=True)
BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {
        "input": [
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "4"}]},
        ],
        "instructions": "i", "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "tool_choice": {"type": "function", "name": "f"}, "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": "low", "summary": "auto"}, "include": ["message.output_text.logprobs"],
        "max_output_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_logprobs": 2, "metadata": {"a": "b"},
        "parallel_tool_calls": True, "store": False, "truncation": "disabled", "context_management": [],
    },
    "/v1/messages": {
        "max_tokens": 4, "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "a"},
                    {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "4"}]},
                    {"type": "text", "text": "b"},
                ],
            },
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": False},
        "thinking": {"type": "enabled", "budget_tokens": 9}, "output_config": {"effort": "low"},
        "stop_sequences": ["END"], "temperature": 0.5, "top_p": 0.9, "top_k": 3, "mcp_servers": [],
    },
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5},
}
PATHS = list(BODIES)


@pytest.mark.parametrize("path", PATHS)
async def test_full_bodies_are_accepted(path: str) -> None:
    async with client_of(FakeLLM(capabilities=ABLE)) as client:
        response = await client.post(path, json=BODIES[path])
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("path", PATHS)
async def test_malformed_bodies_never_fail_the_server(path: str) -> None:
    rng = random.Random(7)
    statuses: dict[int, int] = {}
    async with client_of(FakeLLM(Script(texts=("a",)), ABLE)) as client:
        for number in range(1500):
            body: Any = copy.deepcopy(BODIES[path])
            for _ in range(rng.randrange(1, 4)):
                body = mutate_value(rng, body)
            if isinstance(body, dict) and rng.random() < 0.3:
                body["stream"] = True
            try:
                response = await client.post(path, content=msgspec.json.encode(body), headers=JSON)
            except (msgspec.EncodeError, OverflowError):
                continue
            assert response.status_code < 500, (number, body, response.text)
            if response.status_code != 200:
                assert response.json()["error"]["message"], (number, body)
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        app = client.app  # type: ignore[attr-defined]  # as the fixture left it there
        assert app.service.models.num_active == 0
    assert statuses[200] > 30
    assert statuses[400] > 300


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_engine_answers_429_before_anything_is_sent(path: str, stream: bool) -> None:
    model = FakeLLM()
    model.refusal = QueueFullError("Full: try again later.")
    async with client_of(model) as client:
        response = await client.post(path, json={**SMALL[path], "stream": stream})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("path", PATHS)
async def test_a_draining_server_takes_nothing_more(path: str) -> None:
    async with client_of(FakeLLM()) as client:
        client.app.service.draining = True  # type: ignore[attr-defined]  # as the fixture left it there
        response = await client.post(path, json=SMALL[path])
    assert response.status_code == 503
    assert "shutting down" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
async def test_an_active_name_is_refused_and_can_be_cancelled(path: str) -> None:
    model = FakeLLM(Script(endless=True, pause_s=0.01))
    async with client_of(model) as client:
        body = {**SMALL[path], "request_id": "mine", "max_output_tokens": 10**6, "max_tokens": 10**6}
        first = asyncio.create_task(client.post(path, json=body))
        await until(lambda: "mine" in model.active)
        second = await client.post(path, json=body)
        cancelled = await client.delete("/v1/requests/mine")
        response = await first
    assert second.status_code == 409
    assert cancelled.status_code == 200
    assert response.status_code == 499
    assert not model.active


@pytest.mark.parametrize("path", PATHS)
async def test_translated_requests_are_counted_by_path(path: str) -> None:
    async with client_of(FakeLLM()) as client:
        for stream in (False, True):
            await client.post(path, json={**SMALL[path], "stream": stream})
        page = (await client.get("/metrics")).text
    assert f'pocketllm_http_requests_total{{route="{path}",status="200"}} 2' in page
    assert 'pocketllm_requests_total{outcome="stop"} 2' in page
    assert "pocketllm_generated_tokens_total 10" in page
    assert "pocketllm_ttft_seconds_count 1" in page  # streamed requests only
    assert "pocketllm_inter_token_latency_seconds_count 4" in page


async def test_large_bodies_are_read_on_a_thread_and_bounded() -> None:
    async with client_of(FakeLLM(), max_prompt_chars=200_000) as client:
        assert (await client.post("/v1/responses", json={"input": "x" * 100_000})).status_code == 200
        response: httpx.Response = await client.post("/v1/responses", json={"input": "x" * 300_000})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input"


def test_rows_tell_booleans_from_numbers() -> None:
    row = refused("a.b", "Only 0.", "it is so", "Send 0", (0,))
    check_rows({"a": {"b": 0}}, [row])
    check_rows({"a": {}}, [row])
    check_rows({"a": 5}, [row])
    with pytest.raises(UnsupportedFeatureError, match=r"a\.b"):
        check_rows({"a": {"b": False}}, [row])


@pytest.mark.parametrize(
    "message, told",
    [
        ('"stop" = 5 is wrong.', '"stop_sequences" = 5 is wrong.'),
        ("stop[1] is wrong.", "stop_sequences[1] is wrong."),
        ("stop = 5 is wrong; nonstop.", "stop_sequences = 5 is wrong; nonstop."),
        ("Nothing is named.", "Nothing is named."),
    ],
)
def test_errors_speak_the_words_of_the_endpoint(message: str, told: str) -> None:
    error = in_words_of(ContextLengthError(message, param="stop"), {"stop": "stop_sequences"})
    assert isinstance(error, ContextLengthError)
    assert (error.message, error.param) == (told, "stop_sequences")


def test_errors_about_nothing_in_particular_stay_as_they_are() -> None:
    for error in (BackendUnavailableError("Gone."), ConfigurationError("Bad.", param="top_p")):
        assert in_words_of(error, {"stop": "stop_sequences"}) is error
