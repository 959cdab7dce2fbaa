"""What is too much is refused, with the status that says so, and the server goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pocketllm.errors import ConfigurationError
from pocketllm.types import GenerationRequest
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.routes.prompt_limits import check_prompt_limits
from tests.server.fake_llm import FakeLLM, Script
from tests.server.http_app import CHAT, COMPLETIONS, HELLO, client_of, until
from tests.server.live import live, post, read_response

SLOW = Script(endless=True, pause_s=0.005)


async def test_headers_above_the_limit_are_refused() -> None:
    async with client_of(FakeLLM(), max_header_bytes=500) as client:
        large = await client.get("/v1/models", headers={"cookie": "x" * 500})
        fits = await client.get("/v1/models", headers={"cookie": "x" * 100})
    assert (large.status_code, large.json()["error"]["code"]) == (431, "headers_too_large")
    assert fits.status_code == 200


@pytest.mark.parametrize("num_bytes", [17_000, 100_000, 1_000_000])
async def test_headers_that_are_too_large_over_a_socket(num_bytes: int) -> None:
    async with live(FakeLLM()) as server:
        reader, writer = await server.connect()
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\ncookie: " + b"x" * num_bytes + b"\r\n\r\n")
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        except ConnectionResetError:
            head = b"HTTP/1.1 431 "  # it was said, and what was still under way took it away
        assert head.startswith(b"HTTP/1.1 431 ")
        writer.close()
        other, second = await server.connect()
        second.write(b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await read_response(other))[0] == 200
        second.close()


async def test_a_full_queue_is_said_before_the_body_is_read() -> None:
    model = FakeLLM(SLOW)  # runs 8 at once
    async with client_of(model, max_queue=2) as client:
        running = [asyncio.create_task(client.post(CHAT, json={**HELLO, "request_id": f"r{n}"})) for n in range(10)]
        await until(lambda: len(model.active) == 10)
        refused = await client.post(CHAT, json=HELLO)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert int(refused.headers["retry-after"]) >= 1
        # Not everything is refused: probes, models and cancelling are what one needs now.
        assert (await client.get("/v1/models")).status_code == 200
        metrics = (await client.get("/metrics")).text
        assert "\npocketllm_queue_requests 10\n" in metrics
        assert "\npocketllm_queue_limit 10\n" in metrics
        assert 'pocketllm_http_errors_total{route="/v1/chat/completions",code="queue_full"} 1' in metrics
        assert (await client.delete("/v1/requests/r0")).status_code == 200
        await running[0]
        again = asyncio.create_task(client.post(CHAT, json={**HELLO, "request_id": "again"}))
        await until(lambda: "again" in model.active)
        for name in [*(f"r{n}" for n in range(1, 10)), "again"]:
            await client.delete(f"/v1/requests/{name}")
        await asyncio.gather(*running, again)
        assert "\npocketllm_queue_requests 0\n" in (await client.get("/metrics")).text


async def test_a_queue_of_none_takes_what_runs_at_once() -> None:
    model = FakeLLM(SLOW)
    async with client_of(model, max_queue=0) as client:
        running = [asyncio.create_task(client.post(CHAT, json={**HELLO, "request_id": f"r{n}"})) for n in range(8)]
        await until(lambda: len(model.active) == 8)
        assert (await client.post(COMPLETIONS, json={"prompt": "x"})).status_code == 429
        for number in range(8):
            await client.delete(f"/v1/requests/r{number}")
        await asyncio.gather(*running)


async def test_clients_that_send_slowly_do_not_fill_the_queue() -> None:
    model = FakeLLM()
    async with live(model, max_queue=0) as server:
        slow = [(await server.connect())[1] for _ in range(20)]
        for writer in slow:
            writer.write(post(COMPLETIONS, b'{"prompt": "x"}')[:-3])
        await asyncio.sleep(0.1)
        reader, writer = await server.connect()
        writer.write(post(COMPLETIONS, b'{"prompt": "x"}'))
        assert (await asyncio.wait_for(read_response(reader), 5))[0] == 200
        for each in (*slow, writer):
            each.close()


async def test_of_requests_that_arrive_together_only_so_many_are_let_in() -> None:
    model = FakeLLM(SLOW)
    async with client_of(model, max_queue=1) as client:
        together = [asyncio.create_task(client.post(CHAT, json={**HELLO, "request_id": f"r{n}"})) for n in range(30)]
        await until(lambda: len(model.active) == 9 and sum(task.done() for task in together) == 21)
        for number in range(30):
            await client.delete(f"/v1/requests/r{number}")
        statuses = [(await task).status_code for task in together]
    assert sorted(statuses) == [429] * 21 + [499] * 9


def request(prompt: Any = None, messages: Any = None) -> GenerationRequest:
    metadata = {"messages": messages} if messages is not None else {}
    tokens = tuple(prompt) if isinstance(prompt, list) else ()
    return GenerationRequest(
        prompt=prompt if isinstance(prompt, str) else None if tokens else "", prompt_tokens=tokens, metadata=metadata
    )


LIMITS = ServerSettings(max_messages=3, max_prompt_chars=10)
PARTS = [{"type": "text", "text": "12345"}, {"type": "text", "text": "678901"}]


@pytest.mark.parametrize(
    "requests, param",
    [
        ([request("x" * 11)], "prompt"),
        ([request([1] * 11)], "prompt"),
        ([request("x" * 6), request("x" * 5)], "prompt"),
        ([request(messages=[{"role": "user", "content": "x" * 11}])], "messages"),
        ([request(messages=[{"role": "user", "content": PARTS}])], "messages"),
        ([request(messages=[{"role": "user", "content": ""}] * 4)], "messages"),
    ],
)
def test_prompts_above_the_limits_are_refused(requests: list[GenerationRequest], param: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_prompt_limits(LIMITS, requests)
    assert (caught.value.param, caught.value.status) == (param, 400)


async def test_prompts_that_are_too_large_over_http() -> None:
    model = FakeLLM()
    turn = {"role": "user", "content": "12345"}
    async with client_of(model, max_messages=3, max_prompt_chars=20) as client:
        asked = [
            (CHAT, {"messages": [turn] * 4}, "messages"),
            (CHAT, {"messages": [turn] * 2 + [{"role": "user", "content": "x" * 11}]}, "messages"),
            (COMPLETIONS, {"prompt": "x" * 21}, "prompt"),
            (COMPLETIONS, {"prompt": [[1] * 10, [1] * 11]}, "prompt"),
        ]
        for path, body, param in asked:
            refused = await client.post(path, json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert model.requests == []
        assert (await client.post(CHAT, json={"messages": [turn] * 3})).status_code == 200


def test_prompts_within_the_limits_pass() -> None:
    messages = [{"role": "user", "content": "x" * 10}, {"role": "assistant", "content": None}, {"role": "user"}]
    check_prompt_limits(LIMITS, [request("x" * 10)])
    check_prompt_limits(LIMITS, [request([1] * 10)])
    check_prompt_limits(LIMITS, [request(messages=messages)])
    check_prompt_limits(ServerSettings(max_prompt_chars=0), [request("x" * 10_000_000)])


@pytest.mark.parametrize(
    "name, value",
    [
        ("port", -1),
        ("max_body_bytes", -1),
        ("max_header_bytes", 0),
        ("max_messages", 0),
        ("max_queue", -1),
        ("max_prompt_chars", -1),
        ("keep_alive_interval_s", -0.1),
        ("drain_timeout_s", float("nan")),
        ("send_timeout_s", 0),
        ("body_timeout_s", float("inf")),
        ("log_level", "loud"),
        ("log_format", "xml"),
        ("tool_call_streaming", "sometimes"),
        ("root_path", "llm"),
        ("root_path", "/llm/"),
    ],
)
def test_limits_out_of_bounds_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ServerSettings(**{name: value})
    assert caught.value.param == name
    assert name in caught.value.message
