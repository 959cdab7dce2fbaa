"""The application on a real socket, served by Hypercorn in this process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pocketllm_server.app import App, create_app
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.models.client import ModelClient
from pocketllm_server.serve import serve
from pocketllm_server.transport.listener import bind
from tests.server.http_app import until


class Live:
    """A running server. ``stop`` sends SIGTERM to this very process, as an operator would."""

    def __init__(self, app: App, port: int, task: asyncio.Task[int]) -> None:
        self.app = app
        self.port = port
        self.task = task
        self.said: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def signal(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@asynccontextmanager
async def live(client: ModelClient, *, wait: bool = True, **settings: Any) -> AsyncIterator[Live]:
    app = create_app(client, ServerSettings(**{"served_model_name": "tiny", "drain_timeout_s": 1.0, **settings}))
    listener = bind("127.0.0.1", 0)
    said: list[str] = []
    server = Live(app, listener.getsockname()[1], asyncio.create_task(serve(app, listener, said.append)))
    server.said = said
    try:
        if wait:
            model = app.service.models.default
            await until(lambda: model.readiness.verdict().ready, 180)  # a busy machine loads slowly
        yield server
    finally:
        if not server.task.done():
            server.signal()
            await asyncio.wait_for(server.task, 20)


def post(path: str, body: bytes, *, headers: str = "") -> bytes:
    """A request as it goes over the wire."""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return (head + headers + "\r\n").encode() + body


async def read_response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of a response with a content length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return int(head.split(b" ", 2)[1]), await reader.readexactly(length)
