"""What a request held goes with it at once: the cycle collector comes round after thousands of others."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypercorn.asyncio.tcp_server import TCPServer

from pocketllm.async_llm import AsyncLLM
from pocketllm.engine_args import EngineArgs
from pocketllm.host.record import RequestRecord
from pocketllm.types import CancelReason
from tests.server.fake_llm import FakeLLM
from tests.server.http_app import CHAT, COMPLETIONS, until
from tests.server.live import Live, live, post, read_response

WORDS = "word " * 700
LONG: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": WORDS, "max_tokens": 700, "stream": True, "logprobs": 20, "temperature": 0},
    "/v1/responses": {"input": WORDS, "stream": True},
}
HELD = (RequestRecord, TCPServer)


@pytest.fixture
def _no_collector() -> Iterator[None]:
    logging.disable()  # pytest keeps what is logged, errors with their tracebacks included
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


def _held() -> list[object]:
    return [each for each in gc.get_objects() if issubclass(type(each), HELD)]


async def _answered(server: Live) -> None:
    for path, body, wanted in (
        (COMPLETIONS, {"prompt": "abc"}, 200),
        (COMPLETIONS, {**LONG[COMPLETIONS], "max_tokens": 3}, 200),
        (CHAT, {"messages": [{"role": "user", "content": "abc"}], "n": 2, "temperature": 1, "stream": True}, 200),
        ("/v1/responses", {"input": "abc", "stream": True}, 200),
        ("/v1/messages", {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 3}, 200),
        (COMPLETIONS, {"prompt": "abc", "max_tokens": -1}, 400),
        (COMPLETIONS, {**LONG[COMPLETIONS], "stream": False, "timeout": 0.1}, 504),
    ):
        await _ask(server, path, body, wanted)


async def _cancelled(server: Live) -> None:
    for path, long in LONG.items():
        body = {**long, "stream": False, "request_id": "mine"}
        task = asyncio.create_task(_ask(server, path, body, 499))
        await until(lambda: server.app.service.models.num_active)
        await until(lambda: server.app.service.models.cancel("mine", CancelReason.CLIENT))
        await task


async def _dropped(server: Live) -> None:
    for reset in (False, True):
        for stream in (False, True):
            reader, writer = await server.connect()
            writer.write(post(COMPLETIONS, json.dumps({**LONG[COMPLETIONS], "stream": stream}).encode()))
            if stream:
                await reader.readexactly(1000)
            else:
                await until(lambda: server.app.service.models.num_active)
            if reset:
                writer.transport.abort()
            else:
                writer.close()
            await until(lambda: not server.app.service.models.num_active)


async def _stalled(server: Live) -> None:
    """Reads nothing until it is cut."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, ("127.0.0.1", server.port))
    await loop.sock_sendall(connection, post(COMPLETIONS, json.dumps(LONG[COMPLETIONS]).encode()))
    await until(lambda: server.app.service.models.num_active)
    await until(lambda: not server.app.service.models.num_active, 20)
    connection.close()


async def _ask(server: Live, path: str, body: dict[str, Any], wanted: int) -> None:
    reader, writer = await server.connect()
    writer.write(post(path, json.dumps(body).encode(), headers="connection: close\r\n"))
    head = await reader.readline()
    await reader.read()
    writer.close()
    assert int(head.split()[1]) == wanted, (path, body, head)


@pytest.mark.parametrize("kind", [_answered, _cancelled, _dropped, _stalled])
@pytest.mark.usefixtures("_no_collector")
async def test_a_finished_request_leaves_nothing_held(
    kind: Callable[[Live], Coroutine[Any, Any, None]], smollm2_path: Path
) -> None:
    args = EngineArgs(
        model=str(smollm2_path),
        backend="echo",
        placement="thread",
        max_batch_size=4,
        backend_options={"delay_s": 0.001},
    )
    async with live(AsyncLLM(args), send_timeout_s=0.2) as server:
        await kind(server)
        await until(lambda: not _held())


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("num_requests", [0, 1])
async def test_a_kept_connection_ends_with_its_client(how: str, num_requests: int) -> None:
    """Not with the keep-alive timeout: clients that make a connection for every request would use up descriptors."""
    async with live(FakeLLM()) as server:
        before = len(asyncio.all_tasks())
        clients = [await server.connect() for _ in range(5)]
        for reader, writer in clients:
            for _ in range(num_requests):
                writer.write(post(COMPLETIONS, b'{"prompt": "x"}'))
                assert (await read_response(reader))[0] == 200
        await until(lambda: len(asyncio.all_tasks()) > before)
        for _, writer in clients:
            if how == "close":
                writer.close()
            else:
                writer.transport.abort()
        await until(lambda: len(asyncio.all_tasks()) == before)
