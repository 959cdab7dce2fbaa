from __future__ import annotations

import asyncio

from pocketllm.errors import EngineError
from tests.server.fake_llm import FIXED, FakeLLM, Script
from tests.server.http_app import CHAT, HELLO, client_of, until


async def test_ready_only_after_a_forward_pass() -> None:
    model = FakeLLM()
    model.hold_loading = True
    async with client_of(model) as client:
        loading = await client.get("/ready")
        assert loading.status_code == 503
        assert loading.json()["reason"] == "loading"
        assert loading.headers["retry-after"]
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/alive")).status_code == 200
        refused = await client.post(CHAT, json=HELLO)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "backend_unavailable"
        assert refused.headers["retry-after"]
        model.status = "ready"
        assert (await client.get("/ready")).json()["reason"] in ("warming_up", "ready")
        await until(lambda: client.app.service.models.default.readiness.verdict().ready)  # type: ignore[attr-defined]
        ready = await client.get("/ready")
        assert ready.status_code == 200
        assert ready.json()["status"] == "ready"
        assert ready.json()["model"] == "tiny"


async def test_a_first_pass_that_fails_is_said() -> None:
    model = FakeLLM(Script(fail_after=0))
    async with client_of(model) as client:
        await until(lambda: client.app.service.models.default.readiness.verdict().reason == "warm_up_failed")  # type: ignore[attr-defined]
        response = await client.get("/ready")
    assert response.status_code == 503
    assert "on fire" in response.json()["message"]


async def test_a_restarted_engine_is_tried_again() -> None:
    model = FakeLLM()
    async with client_of(model) as client:
        readiness = client.app.service.models.default.readiness  # type: ignore[attr-defined]
        await until(lambda: readiness.verdict().ready)
        model.status = "failed"
        response = await client.get("/ready")
        assert (response.status_code, response.json()["reason"]) == (503, "failed")
        assert (await client.get("/health")).status_code == 503
        assert (await client.get("/alive")).status_code == 200
        model.epoch, model.status = 2, "ready"
        assert not readiness.verdict().ready
        await until(lambda: readiness.verdict().ready)


async def test_an_engine_with_fixed_sampling_warms_up() -> None:
    async with client_of(FakeLLM(capabilities=FIXED)) as client:
        await until(lambda: client.app.service.models.default.readiness.verdict().ready)  # type: ignore[attr-defined]


async def test_draining_refuses_new_requests_and_finishes_old_ones() -> None:
    model = FakeLLM(Script(pause_s=0.05))
    async with client_of(model) as client:
        task = asyncio.create_task(client.post(CHAT, json=HELLO))
        await until(lambda: model.requests)
        client.app.service.draining = True  # type: ignore[attr-defined]
        refused = await client.post(CHAT, json=HELLO)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        ready = await client.get("/ready")
        assert (ready.status_code, ready.json()["reason"]) == (503, "draining")
        assert (await asyncio.wait_for(task, 5)).status_code == 200


async def test_models_lists_one_name_and_what_works() -> None:
    model = FakeLLM()
    model.hold_loading = True
    async with client_of(model) as client:
        (card,) = (await client.get("/v1/models")).json()["data"]
        assert card["id"] == "tiny"
        assert "capabilities" not in card
        model.status = "ready"
        (card,) = (await client.get("/v1/models")).json()["data"]
    assert card["object"] == "model"
    assert card["max_model_len"] == 4096
    assert card["capabilities"]["supports_logprobs"] is True
    assert "logit_bias" in card["supported_fields"]["chat"]
    assert "echo" not in card["supported_fields"]["completions"]
    assert "prompt" not in card["supported_fields"]["chat"]


async def test_lifespan_closes_the_model() -> None:
    model = FakeLLM()
    async with client_of(model):
        pass
    assert model.closed


async def test_load_error_is_reported() -> None:
    model = FakeLLM()
    model.load_error = EngineError("no memory")
    async with client_of(model) as client:
        assert (await client.get("/ready")).json()["reason"] == "failed"
