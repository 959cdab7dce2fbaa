"""What only a real socket shows: disconnects, bodies nobody reads, connections that live on, garbage."""

from __future__ import annotations

import asyncio
import json
import random

import httpx
import pytest

from pocketllm_server.transport.listener import PortInUseError, bind, url_of
from tests.server.fake_llm import FakeLLM, Script
from tests.server.http_app import CHAT, COMPLETIONS, HELLO, events_of, until
from tests.server.live import live, post, read_response

ENDLESS = Script(endless=True, pause_s=0.002)


async def test_closing_a_stream_frees_its_slot() -> None:
    model = FakeLLM(ENDLESS)
    async with live(model) as server:
        reader, writer = await server.connect()
        writer.write(post(CHAT, json.dumps({**HELLO, "stream": True, "request_id": "r"}).encode()))
        await reader.readuntil(b"Hello")
        writer.close()
        await until(lambda: model.left == ["r"], 2)
        assert model.active == {}


@pytest.mark.parametrize("how", ["close", "reset", "half"])
async def test_closing_a_plain_request_frees_its_slot(how: str) -> None:
    model = FakeLLM(ENDLESS)
    async with live(model) as server:
        _, writer = await server.connect()
        writer.write(post(COMPLETIONS, b'{"prompt": "x", "request_id": "r"}'))
        await until(lambda: model.active)
        if how == "close":
            writer.close()
        elif how == "reset":
            writer.transport.abort()
        else:
            writer.write_eof()
        await until(lambda: model.left == ["r"], 2)
        assert model.active == {}
        writer.close()


async def test_a_client_that_reads_nothing_is_cut_off() -> None:
    model = FakeLLM(Script(texts=("x" * 100_000,), endless=True))
    async with live(model, send_timeout_s=0.2) as server:
        reader, writer = await server.connect()
        writer.write(post(COMPLETIONS, b'{"prompt": "x", "stream": true, "request_id": "r"}'))
        await reader.readexactly(1000)
        writer.transport.pause_reading()
        await until(lambda: model.left == ["r"])
        await until(lambda: server.app.service.models.num_active == 0)
        writer.transport.resume_reading()
        rest = await asyncio.wait_for(reader.read(), 5)  # what the system had taken, and then the end
        assert b"[DONE]" not in rest
        writer.close()


async def test_one_connection_serves_many_requests() -> None:
    async with live(FakeLLM()) as server:
        reader, writer = await server.connect()
        for _ in range(3):
            writer.write(post(CHAT, json.dumps(HELLO).encode()))
            status, body = await asyncio.wait_for(read_response(reader), 5)
            assert status == 200
            assert json.loads(body)["choices"][0]["message"]["content"] == "Hello, world!"
        writer.close()


async def test_a_real_client_reads_a_stream() -> None:
    async with live(FakeLLM()) as server, httpx.AsyncClient(base_url=server.url) as client:
        async with client.stream("POST", CHAT, json={**HELLO, "stream": True}) as response:
            text = (await response.aread()).decode()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert "server" not in response.headers
        assert events_of(text)[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("path, wanted", [("/v1/nope", 404), ("/health", 405), (CHAT, 413)])
async def test_a_large_body_that_nobody_reads_gets_its_answer(path: str, wanted: int) -> None:
    async with live(FakeLLM(), max_body_bytes=1000) as server:
        for _ in range(3):
            reader, writer = await server.connect()
            writer.write(post(path, b"x" * 3_000_000))
            status, body = await asyncio.wait_for(read_response(reader), 5)
            assert status == wanted
            assert "error" in json.loads(body)
            writer.close()
        await until(lambda: len(asyncio.all_tasks()) < 12)  # no task stays behind a body that is not read


async def test_a_body_that_never_ends_is_dropped() -> None:
    async with live(FakeLLM(), max_body_bytes=1000) as server:
        reader, writer = await server.connect()
        writer.write(post(CHAT, b"x" * 10, headers="").replace(b"content-length: 10", b"content-length: 10000000"))
        status, _ = await asyncio.wait_for(read_response(reader), 5)
        assert status == 413
        assert await asyncio.wait_for(reader.read(), 5) == b""  # the server ends the connection
        writer.close()


async def test_garbage_is_refused_and_the_server_lives() -> None:
    rng = random.Random(3)
    async with live(FakeLLM()) as server:
        for number in range(60):
            reader, writer = await server.connect()
            data = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 300)))
            if number % 3 == 0:
                data = b"POST /v1/completions HTTP/1.1\r\n" + data
            elif number % 3 == 1:
                data = b"GET /ready HTTP/1.1\r\nhost: x\r\nx: " + b"y" * rng.choice((10, 20_000)) + b"\r\n\r\n"
            writer.write(data + b"\r\n\r\n")
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), 5)
            assert not answer or answer.split(b" ")[1] < b"500", answer[:80]
            writer.close()
        async with httpx.AsyncClient(base_url=server.url) as client:
            assert (await client.get("/ready")).status_code == 200


async def test_many_streams_at_once_each_get_their_own_answer() -> None:
    model = FakeLLM(Script(texts=tuple("abcdefgh"), pause_s=0.001))
    async with live(model) as server, httpx.AsyncClient(base_url=server.url, timeout=20) as client:

        async def one(number: int) -> tuple[str, str]:
            body = {"prompt": "x", "stream": True, "max_tokens": number % 8 + 1, "request_id": f"r{number}"}
            text = (await client.post(COMPLETIONS, json=body)).text
            events = events_of(text)
            return "".join(e["choices"][0]["text"] for e in events), events[-1]["choices"][0]["finish_reason"]

        answers = await asyncio.gather(*(one(number) for number in range(64)))
    for number, (text, _) in enumerate(answers):
        assert text == "abcdefgh"[: number % 8 + 1]


async def test_a_web_socket_is_refused() -> None:
    async with live(FakeLLM()) as server:
        reader, writer = await server.connect()
        writer.write(
            b"GET /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert head.split(b" ")[1] == b"403"
        writer.close()


async def test_a_large_prompt_is_read_off_the_loop() -> None:
    model = FakeLLM()
    async with live(model) as server, httpx.AsyncClient(base_url=server.url) as client:
        response = await client.post(COMPLETIONS, json={"prompt": [5] * 200_000})
        assert response.status_code == 200
        wrong = await client.post(COMPLETIONS, json={"prompt": [5] * 200_000 + [1000]})
        assert wrong.status_code == 400
    assert len(model.requests[0].prompt_tokens) == 200_000


def test_a_taken_port_is_said() -> None:
    first = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    with pytest.raises(PortInUseError, match=f"Port {port} on 127.0.0.1 is in use"):
        bind("127.0.0.1", port)
    assert url_of(first) == f"http://127.0.0.1:{port}"
    first.close()
