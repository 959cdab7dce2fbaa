from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from pocketllm import EngineArgs
from pocketllm.async_llm import AsyncLLM
from pocketllm.fields import rows
from pocketllm_server.app import create_app
from tests.fuzz.http_requests import NASTY, check, fuzz, scripted_apps
from tests.server.http_app import CHAT, COMPLETIONS, RawExchange, running, until


@pytest.mark.parametrize("number", range(3), ids=["everything", "guide", "engine-wide"])
async def test_malformed_requests_never_fail_the_server(number: int) -> None:
    app = scripted_apps()[number]
    async with running(app):
        await until(lambda: app.service.models.default.readiness.verdict().ready)
        assert await fuzz(app, random.Random(number), max_requests=1500) == 1500
        assert app.service.models.num_active == 0


@pytest.mark.parametrize("number", range(3), ids=["everything", "guide", "engine-wide"])
async def test_every_field_with_every_nasty_value(number: int) -> None:
    app = scripted_apps()[number]
    needed = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "max_tokens": 2}
    async with running(app):
        await until(lambda: app.service.models.default.readiness.verdict().ready)
        for path, endpoint in ((CHAT, "chat"), (COMPLETIONS, "completions")):
            for name in rows(endpoint):
                for value in NASTY:
                    body = json.dumps({**needed, name: value}).encode()
                    exchange = RawExchange(app, "POST", path, body)
                    await asyncio.wait_for(exchange.run(), 10)
                    check(exchange)
        assert app.service.models.num_active == 0


async def test_malformed_requests_through_the_real_pipeline(smollm2_path: Path) -> None:
    model = AsyncLLM(EngineArgs(model=str(smollm2_path), backend="echo", placement="thread"))
    app = create_app(model)
    async with running(app):
        await until(lambda: app.service.models.default.readiness.verdict().ready, 60)
        assert await fuzz(app, random.Random(9), max_requests=1500) == 1500
        await until(lambda: model.stats().num_running + model.stats().num_waiting == 0)
        assert app.service.models.num_active == 0
