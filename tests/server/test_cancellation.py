from __future__ import annotations

import asyncio
import json

import pytest

from pocketllm_server.app import create_app
from pocketllm_server.config.settings import ServerSettings
from tests.server.fake_llm import FakeLLM, Script
from tests.server.http_app import CHAT, COMPLETIONS, HELLO, RawExchange, client_of, events_of, running, until

ENDLESS = Script(endless=True, pause_s=0.001)


@pytest.mark.parametrize("by", ["request_id", "response_id"])
async def test_cancelled_stream_ends_by_itself(by: str) -> None:
    model = FakeLLM(ENDLESS)
    app = create_app(model)
    async with running(app):
        exchange = RawExchange(app, "POST", CHAT, json.dumps({**HELLO, "stream": True, "request_id": "r"}).encode())
        task = exchange.run()
        await until(lambda: len(exchange.sent) > 3)
        name = "r" if by == "request_id" else json.loads(exchange.body.split(b"\n\n")[0][6:])["id"]
        first = RawExchange(app, "DELETE", f"/v1/requests/{name}", b"")
        await first.run()
        second = RawExchange(app, "DELETE", f"/v1/requests/{name}", b"")
        await second.run()
        await asyncio.wait_for(task, 5)
    assert first.status == 200
    assert json.loads(first.body) == {"id": name, "object": "request", "cancelled": True}
    assert second.status == 404
    events = events_of(exchange.body.decode())
    assert events[-1]["choices"][0]["finish_reason"] == "cancelled"
    assert model.active == {}


async def test_cancelled_plain_request_is_a_499() -> None:
    model = FakeLLM(ENDLESS)
    async with client_of(model) as client:
        task = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x", "request_id": "r"}))
        await until(lambda: model.active)
        assert (await client.delete("/v1/requests/r")).status_code == 200
        assert (await client.delete("/v1/requests/r")).status_code == 404
        response = await asyncio.wait_for(task, 5)
    assert response.status_code == 499
    assert response.json()["error"]["code"] == "request_cancelled"


async def test_cancelling_one_id_reaches_every_prompt() -> None:
    model = FakeLLM(ENDLESS)
    async with client_of(model) as client:
        body = {"prompt": ["a", "b"], "request_id": "r", "stream": True, "n": 2, "temperature": 1}
        task = asyncio.create_task(client.post(COMPLETIONS, json=body))
        await until(lambda: len(model.active) == 2)
        assert (await client.delete("/v1/requests/r")).status_code == 200
        events = events_of((await asyncio.wait_for(task, 5)).text)
    ends = [event["choices"][0] for event in events if event["choices"][0]["finish_reason"]]
    assert sorted((end["index"], end["finish_reason"]) for end in ends) == [(i, "cancelled") for i in range(4)]


async def test_unknown_and_finished_requests_are_404() -> None:
    async with client_of(FakeLLM()) as client:
        body = (await client.post(CHAT, json={**HELLO, "request_id": "done"})).json()
        for name in ("unknown", "done", body["id"], "a/b", "%00"):
            response = await client.delete(f"/v1/requests/{name}")
            assert response.status_code == 404
            assert response.json()["error"]["type"] == "invalid_request_error"


async def test_an_active_request_id_is_refused() -> None:
    model = FakeLLM(ENDLESS)
    async with client_of(model) as client:
        task = asyncio.create_task(client.post(CHAT, json={**HELLO, "request_id": "r"}))
        await until(lambda: model.active)
        response = await client.post(CHAT, json={**HELLO, "request_id": "r"})
        assert response.status_code == 409
        assert response.json()["error"]["param"] == "request_id"
        await client.delete("/v1/requests/r")
        await asyncio.wait_for(task, 5)
        # Once it has ended the name is free again.
        model.script = Script()
        assert (await client.post(CHAT, json={**HELLO, "request_id": "r"})).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_slot(stream: bool) -> None:
    model = FakeLLM(ENDLESS)
    app = create_app(model)
    async with running(app):
        exchange = RawExchange(app, "POST", CHAT, json.dumps({**HELLO, "stream": stream, "request_id": "r"}).encode())
        task = exchange.run()
        await until(lambda: model.active)
        exchange.disconnect()
        await asyncio.wait_for(task, 5)
        assert model.left == ["r"]
        assert model.active == {}
        assert app.service.models.num_active == 0
        assert exchange.status == (200 if stream else None)
        assert b"[DONE]" not in exchange.body


async def test_a_reader_that_reads_nothing_is_cut() -> None:
    model = FakeLLM(ENDLESS)
    app = create_app(model, ServerSettings(send_timeout_s=0.05))

    class Stalled(RawExchange):
        async def _send(self, message: object) -> None:
            await super()._send(message)
            if len(self.sent) > 2:
                await asyncio.Event().wait()

    async with running(app):
        exchange = Stalled(app, "POST", CHAT, json.dumps({**HELLO, "stream": True, "request_id": "r"}).encode())
        await asyncio.wait_for(exchange.run(), 5)
    assert model.left == ["r"]
