"""The engine's process is killed under load: every stream ends once, the probe says why, and service comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx

from pocketllm import EngineArgs
from pocketllm.async_llm import AsyncLLM
from tests.server.http_app import COMPLETIONS, events_of, until
from tests.server.live import live


def children() -> set[int]:
    """Processes that this one has started and that still run."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue  # it ended meanwhile
            if int(parent) == os.getpid() and state != "Z":
                found.add(int(entry.name))
    return found


async def test_streams_end_once_and_service_comes_back(smollm2_path: Path) -> None:
    before = children()
    options = {"delay_s": 0.01}
    args = EngineArgs(
        model=str(smollm2_path), backend="echo", backend_options=options, placement="child", max_batch_size=16
    )
    async with live(AsyncLLM(args)) as server, httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        engines = children() - before
        assert engines
        body = {"prompt": "word " * 1000, "stream": True}
        streams = [asyncio.create_task(client.post(COMPLETIONS, json=body)) for _ in range(16)]
        # Not those that are still being prepared: they would be refused, not cut.
        model: Any = server.app.service.models.default.client
        await until(lambda: model.host.num_active == 16, 30)
        await asyncio.sleep(0.1)
        for engine in engines:
            os.kill(engine, signal.SIGKILL)
        await until(lambda: not server.app.service.models.default.readiness.verdict().ready)
        answers = [await stream for stream in streams]
        not_ready = await client.get("/ready")
        assert not_ready.status_code == 503
        assert not_ready.json()["message"]
        for answer in answers:
            events = events_of(answer.text)  # [DONE] is there, once
            assert [event for event in events if "error" in event] == events[-1:]
            assert events[-1]["error"]["type"] == "server_error"
        await until(lambda: server.app.service.models.default.readiness.verdict().ready, 30)
        assert (await client.post(COMPLETIONS, json={"prompt": "again"})).status_code == 200
        assert server.app.service.models.num_active == 0
    await until(lambda: children() - before == set(), 10)
