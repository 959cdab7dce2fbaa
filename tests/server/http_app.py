"""A client that speaks to the application in this process, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from pocketllm_server.app import App, create_app
from pocketllm_server.config.settings import ServerSettings
from tests.server.fake_llm import FakeLLM

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "Hi"}]}


@asynccontextmanager
async def running(app: App) -> AsyncIterator[None]:
    """Keep the application's lifespan open."""
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    task = asyncio.create_task(app({"type": "lifespan"}, inbox.get, outbox.put))  # type: ignore[arg-type]
    await inbox.put({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"
    try:
        yield
    finally:
        await inbox.put({"type": "lifespan.shutdown"})
        assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
        await task


@asynccontextmanager
async def client_of(model: FakeLLM, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(model, ServerSettings(**{"served_model_name": "tiny", **settings}))
    async with client_over(app) as client:
        yield client


@asynccontextmanager
async def client_over(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with running(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            client.app = app  # type: ignore[attr-defined]  # for tests that look inside
            yield client


async def until(condition: Any, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.005)


def events_of(text: str) -> list[dict[str, Any]]:
    """The JSON payloads of a finished stream; checks that it ends in [DONE], once."""
    frames = text.split("\n\n")
    assert frames[-1] == ""
    assert frames[-2] == "data: [DONE]"
    payloads = frames[:-2]
    assert all(frame.startswith("data: {") for frame in payloads)
    return [json.loads(frame.removeprefix("data: ")) for frame in payloads]


class RawExchange:
    """One request with hand-written messages: the only way to see what happens around a disconnect."""

    def __init__(self, app: App, method: str, path: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        given = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        self._scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }
        self._app = app
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.sent: list[dict[str, Any]] = []
        self.left = False

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    def run(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._app(self._scope, self._inbox.get, self._send))  # type: ignore[arg-type]

    def disconnect(self) -> None:
        self.left = True
        self._inbox.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])
