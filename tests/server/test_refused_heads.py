"""What is no HTTP/1.1 request gets an answer in the server's shape all the same, with an id that its log line has."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.server.fake_llm import FakeLLM, Script
from tests.server.http_app import CHAT, HELLO
from tests.server.live import Live, live, post
from tests.server.test_logs import lines_of, logged

GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"


async def answer(server: Live, data: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of the answer; the server must close the connection behind it."""
    reader, writer = await server.connect()
    writer.write(data)
    whole = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    head, _, body = whole.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert headers["content-length"] == str(len(body))
    return int(first.split(" ")[1]), headers, json.loads(body)


@pytest.mark.parametrize(
    "data, status, code",
    [
        (b"nonsense\r\n\r\n", 400, None),
        (b"GET /v1/models\r\n\r\n", 400, None),
        (GET + b"no colon\r\n\r\n", 400, None),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 400, None),  # without a host
        (GET + b"content-length: -5\r\n\r\n", 400, None),
        (GET + b"transfer-encoding: zip\r\n\r\n", 501, None),
        (GET + b"cookie: " + b"x" * 70_000, 431, "headers_too_large"),
        (post(CHAT, b"", headers="transfer-encoding: chunked\r\n").replace(b"content-length: 0\r\n", b"") + b"zz\r\n",
         400, None),
    ],
)  # fmt: skip
async def test_the_answer_has_an_id_and_the_shape_of_an_error(data: bytes, status: int, code: str | None) -> None:
    async with live(FakeLLM()) as server:
        told, headers, body = await answer(server, data)
        other = await answer(server, data)
    assert told == status
    assert headers["content-type"] == "application/json"
    assert headers["connection"] == "close"
    assert "server" not in headers
    assert len(headers["x-request-id"]) == 32
    assert other[1]["x-request-id"] != headers["x-request-id"]
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert (error["param"], error["code"]) == (None, code)
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")


async def test_its_log_line_has_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    with logged("info", "json", monkeypatch) as stream:
        async with live(FakeLLM()) as server:
            _, headers, _ = await answer(server, b"nonsense\r\n\r\n")
    (line,) = [line for line in lines_of(stream) if line.get("request_id") == headers["x-request-id"]]
    assert line["level"] == "info"
    assert "400" in line["message"]
    assert "nonsense" not in stream.getvalue()


async def test_an_answer_that_has_begun_is_not_followed_by_another() -> None:
    async with live(FakeLLM(Script(endless=True, pause_s=0.01))) as server:
        reader, writer = await server.connect()
        writer.write(post(CHAT, json.dumps({**HELLO, "stream": True, "max_tokens": 5}).encode()))
        await asyncio.wait_for(reader.readuntil(b"Hello"), 5)
        writer.write(b"nonsense\r\n\r\n")  # pipelined behind a request whose answer is under way
        rest = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert b"[DONE]" in rest
    done, _, after = rest.partition(b"[DONE]")
    assert b"HTTP/1.1" not in done
    assert after.count(b"HTTP/1.1 400") <= 1
