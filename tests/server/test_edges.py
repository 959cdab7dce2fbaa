"""Whatever a client sends, the answer has OpenAI's error shape and is never a 5xx."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from pocketllm_server.app import create_app
from pocketllm_server.config.settings import ServerSettings
from tests.server.fake_llm import FakeLLM
from tests.server.http_app import CHAT, COMPLETIONS, HELLO, RawExchange, client_of, running

JSON = {"content-type": "application/json"}


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/embeddings", "/v1/models/", "/v1/moderations", "/v1/audio/speech", "/%ff", "/v1//models"]
)
async def test_an_unknown_path_is_answered_with_404(path: str) -> None:
    async with client_of(FakeLLM()) as client:
        for method in ("GET", "POST", "DELETE"):
            response = await client.request(method, path)
            assert response.status_code == 404
            assert error_of(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize("method, path", [("GET", CHAT), ("PUT", COMPLETIONS), ("POST", "/health"), ("OPTIONS", CHAT)])
async def test_a_wrong_method_is_answered_with_405(method: str, path: str) -> None:
    async with client_of(FakeLLM()) as client:
        response = await client.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"]
    error_of(response)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nonsense",
        b"null",
        b"[]",
        b'"text"',
        b"1",
        b'\xef\xbb\xbf{"prompt":"x"}',
        b'{"prompt":"\xff"}',
        b'{"prompt":"\\ud800"}',
        b'{"prompt":"x","temperature":NaN}',
        b'{"prompt":"x","temperature":1e999}',
        b'{"prompt":"x","seed":' + b"9" * 5000 + b"}",
        b'{"prompt":"x","seed":' + b"9" * 400 + b"}",
        b'{"prompt":' + b"[" * 30_000,
        b'{"prompt":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        b'{"prompt":"x","metadata":' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"}",
        b'{"a":' * 30_000,
        json.dumps({"prompt": "x"}).encode("utf-16"),
    ],
    ids=lambda data: repr(data[:24]),
)
async def test_bodies_that_are_no_json_object(data: bytes) -> None:
    async with client_of(FakeLLM()) as client:
        response = await client.post(COMPLETIONS, content=data, headers=JSON)
    assert response.status_code == 400
    error_of(response)


@pytest.mark.parametrize("opening", [b'{"prompt":' + b"[" * 100_000, b'{"a":' * 100_000])
async def test_nesting_without_an_end_is_refused_unread(opening: bytes) -> None:
    async with client_of(FakeLLM()) as client:
        response = await client.post(COMPLETIONS, content=opening, headers=JSON)
    assert response.status_code == 413
    assert "max_json_values" in error_of(response)["message"]


async def test_the_last_of_a_repeated_key_counts() -> None:
    model = FakeLLM()
    async with client_of(model) as client:
        response = await client.post(COMPLETIONS, content=b'{"prompt":"a","prompt":"b"}', headers=JSON)
    assert response.status_code == 200
    assert model.requests[0].prompt == "b"


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"])
async def test_a_body_of_another_type_is_answered_with_415(kind: str | None) -> None:
    async with client_of(FakeLLM()) as client:
        headers = {} if kind is None else {"content-type": kind}
        response = await client.post(CHAT, content=json.dumps(HELLO).encode(), headers=headers)
    assert response.status_code == 415
    error_of(response)


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"])
async def test_every_spelling_of_json_is_taken(kind: str) -> None:
    async with client_of(FakeLLM()) as client:
        response = await client.post(CHAT, content=json.dumps(HELLO).encode(), headers={"content-type": kind})
    assert response.status_code == 200


async def test_body_limit_with_and_without_a_declared_length() -> None:
    async with client_of(FakeLLM(), max_body_bytes=1000) as client:
        big = json.dumps({"prompt": "x" * 2000}).encode()
        declared = await client.post(COMPLETIONS, content=big, headers=JSON)

        async def pieces() -> Any:
            for start in range(0, len(big), 100):
                yield big[start : start + 100]

        chunked = await client.post(COMPLETIONS, content=pieces(), headers=JSON)
        fits = await client.post(COMPLETIONS, json={"prompt": "x" * 900})
    assert declared.status_code == chunked.status_code == 413
    assert error_of(declared)["code"] == error_of(chunked)["code"] == "body_too_large"
    assert fits.status_code == 200


async def test_a_body_that_does_not_come_times_out() -> None:
    app = create_app(FakeLLM(), ServerSettings(body_timeout_s=0.05))
    async with running(app):
        exchange = RawExchange(app, "POST", CHAT, b"")
        exchange._inbox = asyncio.Queue()
        task = exchange.run()
        await asyncio.sleep(0.2)
        exchange.disconnect()  # ends the reading of what is left
        await asyncio.wait_for(task, 5)
    assert exchange.status == 408


async def test_client_that_leaves_in_the_middle_of_its_body() -> None:
    app = create_app(FakeLLM())
    async with running(app):
        exchange = RawExchange(app, "POST", CHAT, b"")
        exchange._inbox = asyncio.Queue()
        exchange._inbox.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
        exchange.disconnect()
        await asyncio.wait_for(exchange.run(), 5)
    assert exchange.sent == []


async def test_an_unexpected_exception_is_a_500_in_our_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeLLM()
    async with client_of(model) as client:
        monkeypatch.setattr(model, "stats", lambda: 1 / 0)
        response = await client.get("/metrics")
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"
    assert "division" not in response.text
