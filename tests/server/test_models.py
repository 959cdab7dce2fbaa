"""Several models behind one listener: each request finds its own, and nothing of one is counted for another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from pocketllm_server.app import App
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.models.model import Model
from pocketllm_server.models.models import Models
from pocketllm_server.service import Service
from tests.server.fake_llm import FakeLLM, Script
from tests.server.http_app import CHAT, COMPLETIONS, HELLO, client_of, client_over, until
from tests.server.test_metrics import parse

SMALL: dict[str, dict[str, Any]] = {
    CHAT: HELLO,
    COMPLETIONS: {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {**HELLO, "max_tokens": 5},
}
SLOW = Script(endless=True, pause_s=0.002)


@asynccontextmanager
async def serving(*, max_queue: int | None = None, **clients: FakeLLM) -> AsyncIterator[httpx.AsyncClient]:
    models = [
        Model(client, name, max_queue=max_queue, metrics_label=f'model="{name}"') for name, client in clients.items()
    ]
    async with client_over(App(Service(Models(models), ServerSettings()))) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", SMALL)
async def test_a_request_runs_on_the_model_it_names(path: str, stream: bool) -> None:
    first, second = FakeLLM(), FakeLLM()
    async with serving(first=first, second=second) as client:
        for name in ("second", "second", "first", None):
            response = await client.post(path, json={**SMALL[path], "model": name, "stream": stream})
            assert response.status_code == 200
            assert f'"model":"{name or "first"}"' in response.text
    assert (len(first.requests), len(second.requests)) == (2, 2)


@pytest.mark.parametrize("path", SMALL)
async def test_an_unknown_name_is_a_404(path: str) -> None:
    async with serving(first=FakeLLM(), second=FakeLLM()) as client:
        response = await client.post(path, json={**SMALL[path], "model": "third"})
    assert response.status_code == 404
    assert '"third" is not served here' in response.json()["error"]["message"]
    if path != "/v1/messages":  # Anthropic's shape has no code
        assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", SMALL)
async def test_the_only_model_answers_to_every_name(path: str) -> None:
    async with client_of(FakeLLM()) as client:
        response = await client.post(path, json={**SMALL[path], "model": "third"})
    assert (response.status_code, response.json()["model"]) == (200, "tiny")


async def test_all_of_them_are_listed() -> None:
    loading = FakeLLM()
    loading.hold_loading = True
    async with serving(first=FakeLLM(), second=loading) as client:
        cards = (await client.get("/v1/models")).json()["data"]
    assert [(card["id"], "capabilities" in card) for card in cards] == [("first", True), ("second", False)]


async def test_a_full_queue_of_one_refuses_nothing_for_the_other() -> None:
    busy, free = FakeLLM(SLOW), FakeLLM()
    async with serving(max_queue=0, busy=busy, free=free) as client:
        running = [
            asyncio.create_task(client.post(CHAT, json={**HELLO, "model": "busy", "request_id": f"r{n}"}))
            for n in range(8)
        ]
        await until(lambda: len(busy.active) == 8)
        refused = await client.post(CHAT, json={**HELLO, "model": "busy"})
        served = await client.post(CHAT, json={**HELLO, "model": "free"})
        for number in range(8):
            assert (await client.delete(f"/v1/requests/r{number}")).status_code == 200
        await asyncio.gather(*running)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert served.status_code == 200


async def test_metrics_tell_them_apart() -> None:
    async with serving(first=FakeLLM(), second=FakeLLM()) as client:
        for name in ("first", "second", "second"):
            await client.post(CHAT, json={**HELLO, "model": name})
        page = (await client.get("/metrics")).text
    samples = parse(page)
    for name, count in (("first", 1), ("second", 2)):
        assert samples[f'pocketllm_requests_total{{model="{name}",outcome="stop"}}'] == count
        assert samples[f'pocketllm_generated_tokens_total{{model="{name}"}}'] == 5 * count
        assert samples[f'pocketllm_request_duration_seconds_count{{model="{name}"}}'] == count
    assert page.count("# TYPE pocketllm_requests_total counter") == 1


def test_names_are_kept_apart() -> None:
    with pytest.raises(ValueError, match="one name"):
        Models([Model(FakeLLM(), "a"), Model(FakeLLM(), "a")])
    with pytest.raises(ValueError, match="needs a model"):
        Models([])
