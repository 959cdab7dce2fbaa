"""A unix socket in place of a port."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import httpx
import pytest

from pocketllm.errors import ConfigurationError
from pocketllm_server.app import create_app
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.serve import serve
from pocketllm_server.transport.listener import PortInUseError, bind_unix, url_of
from tests.server.fake_llm import FakeLLM
from tests.server.http_app import CHAT, HELLO, events_of, until


async def test_serves_and_takes_its_file_away(tmp_path: Path) -> None:
    path = str(tmp_path / "llm.sock")
    app = create_app(FakeLLM(), ServerSettings(uds=path))
    task = asyncio.create_task(serve(app, bind_unix(path), lambda line: None))
    await until(lambda: app.service.models.default.readiness.verdict().ready)
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=path), base_url="http://localhost") as client:
        assert (await client.get("/ready")).status_code == 200
        answer = await client.post(CHAT, json={**HELLO, "stream": True})
        assert events_of(answer.text)[-1]["choices"][0]["finish_reason"] == "stop"
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(task, 10) == 0
    assert "llm.sock" not in os.listdir(tmp_path)


def test_a_file_left_behind_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "llm.sock")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    listener = bind_unix(path)
    assert url_of(listener) == f"unix:{path}"
    listener.close()


def test_a_socket_in_use_is_said(tmp_path: Path) -> None:
    path = str(tmp_path / "llm.sock")
    first = bind_unix(path)
    with pytest.raises(PortInUseError, match="Another program listens"):
        bind_unix(path)
    first.close()


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(ConfigurationError, match="is not a socket"):
        bind_unix(str(path))
    assert path.read_text() == "mine"


def test_a_socket_path_that_cannot_be_bound_is_named() -> None:
    for path in ("/no/such/folder/llm.sock", "x" * 200):
        with pytest.raises(ConfigurationError, match="Cannot listen"):
            bind_unix(path)
