from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from pocketllm.errors import CheckpointError
from tests.server.fake_llm import FakeLLM, Script
from tests.server.http_app import CHAT, COMPLETIONS, HELLO, events_of, until
from tests.server.live import live

ENDLESS = Script(endless=True, pause_s=0.002)


async def test_idle_server_ends_at_once() -> None:
    model = FakeLLM()
    async with live(model) as server:
        server.signal()
        assert await asyncio.wait_for(server.task, 5) == 0
    assert model.closed


async def test_drain_finishes_what_runs_and_refuses_what_comes() -> None:
    model = FakeLLM(Script(pause_s=0.1))
    async with live(model, drain_timeout_s=10) as server, httpx.AsyncClient(base_url=server.url) as client:
        task = asyncio.create_task(client.post(CHAT, json={**HELLO, "stream": True}))
        await until(lambda: model.active)
        server.signal()
        await until(lambda: server.app.service.draining)
        refused = await client.post(CHAT, json=HELLO)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert (await client.get("/ready")).json()["reason"] == "draining"
        assert events_of((await task).text)[-1]["choices"][0]["finish_reason"] == "stop"
        assert await asyncio.wait_for(server.task, 5) == 0
    assert any("Finishing 1 request" in line for line in server.said)


async def test_drain_cancels_after_its_deadline() -> None:
    model = FakeLLM(ENDLESS)
    async with live(model, drain_timeout_s=0.2) as server, httpx.AsyncClient(base_url=server.url) as client:
        stream = asyncio.create_task(client.post(CHAT, json={**HELLO, "stream": True}))
        plain = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x"}))
        await until(lambda: len(model.active) == 2)
        server.signal()
        assert events_of((await stream).text)[-1]["choices"][0]["finish_reason"] == "cancelled"
        assert (await plain).status_code == 503
        assert await asyncio.wait_for(server.task, 5) == 0


async def test_a_second_signal_cancels_at_once() -> None:
    model = FakeLLM(ENDLESS)
    async with live(model, drain_timeout_s=60) as server, httpx.AsyncClient(base_url=server.url) as client:
        stream = asyncio.create_task(client.post(CHAT, json={**HELLO, "stream": True}))
        await until(lambda: model.active)
        server.signal()
        await until(lambda: server.app.service.draining)
        server.signal()
        assert events_of((await stream).text)[-1]["choices"][0]["finish_reason"] == "cancelled"
        assert await asyncio.wait_for(server.task, 5) == 128 + 15


async def test_a_reader_that_has_stopped_reading_does_not_hold_the_shutdown_up() -> None:
    model = FakeLLM(Script(texts=("x" * 100_000,), endless=True))
    async with live(model, drain_timeout_s=0.1) as server:
        reader, writer = await server.connect()
        body = json.dumps({"prompt": "x", "stream": True}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
        await reader.readexactly(1000)
        writer.transport.pause_reading()
        await asyncio.sleep(0.3)
        server.signal()
        assert await asyncio.wait_for(server.task, 25) == 0
        writer.transport.abort()
    assert model.closed


async def test_a_first_load_that_fails_ends_the_server() -> None:
    model = FakeLLM()
    model.load_error = CheckpointError("no such file")
    async with live(model, wait=False) as server:
        with pytest.raises(CheckpointError, match="no such file"):
            await asyncio.wait_for(server.task, 5)


async def test_loading_says_when_it_is_done() -> None:
    async with live(FakeLLM()) as server:
        await until(lambda: server.said)
        assert "backend fake" in server.said[0]
