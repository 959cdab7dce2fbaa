"""X-Request-Id: taken where it is well formed, made where it is not, and on every answer."""

from __future__ import annotations

import asyncio
import json

import pytest

from pocketllm_server.transport.request_context import current_request
from tests.server.fake_llm import FakeLLM
from tests.server.http_app import CHAT, COMPLETIONS, HELLO, client_of
from tests.server.live import live, post


@pytest.mark.parametrize("sent", ["a", "req-1", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "x" * 128])
async def test_a_well_formed_id_is_echoed(sent: str) -> None:
    async with client_of(FakeLLM()) as client:
        for method, path in (("GET", "/health"), ("POST", CHAT), ("GET", "/nope")):
            response = await client.request(method, path, json=HELLO, headers={"X-Request-ID": sent})
            assert response.headers.get_list("x-request-id") == [sent]


@pytest.mark.parametrize("sent", [None, "", "x" * 129, "two words", "a\tb", "<script>", 'quo"te', "comma,"])
async def test_a_request_without_an_id_gets_one(sent: str | None) -> None:
    headers = {} if sent is None else {"x-request-id": sent}
    async with client_of(FakeLLM()) as client:
        made = [(await client.get("/v1/models", headers=headers)).headers["x-request-id"] for _ in range(2)]
    assert len(set(made)) == 2
    for each in made:
        assert len(each) == 32
        assert int(each, 16) >= 0


@pytest.mark.parametrize(
    "method, path, body, status",
    [
        ("POST", CHAT, HELLO, 200),
        ("POST", CHAT, {**HELLO, "stream": True}, 200),
        ("POST", CHAT, {"messages": 5}, 400),
        ("GET", "/nope", {}, 404),
        ("PUT", CHAT, {}, 405),
        ("POST", COMPLETIONS, {"prompt": "x" * 5000}, 413),
        ("GET", "/metrics", {}, 200),
    ],
)
async def test_answers_of_every_kind_carry_the_request_id(method: str, path: str, body: object, status: int) -> None:
    async with client_of(FakeLLM(), max_body_bytes=1000) as client:
        response = await client.request(method, path, json=body)
    assert response.status_code == status
    assert response.headers["x-request-id"]


async def test_request_ids_of_one_connection_do_not_mix() -> None:
    async with live(FakeLLM()) as server:
        reader, writer = await server.connect()
        for number in range(3):
            body = json.dumps({"prompt": "x"}).encode()
            writer.write(post(COMPLETIONS, body, headers=f"x-request-id: id-{number}\r\n"))
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            assert b"x-request-id: id-%d\r\n" % number in head
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
        writer.close()
    assert current_request() is None
