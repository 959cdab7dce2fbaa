"""Every field and every value over a real socket, on echo in its three capability sets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pocketllm import EngineArgs
from pocketllm.async_llm import AsyncLLM
from pocketllm.fields import BOTH, CHAT, rows
from pocketllm.types import Capabilities
from tests.server.field_values import USER, VALUES, WRONG, Value
from tests.server.http_app import CHAT as CHAT_PATH
from tests.server.http_app import COMPLETIONS as COMPLETIONS_PATH
from tests.server.http_app import events_of
from tests.server.live import Live, live
from tests.text import templates

pytestmark = pytest.mark.asyncio(loop_scope="module")

# What the guide refuses for want of an engine, whatever else an engine declares.
GUIDE_REFUSES = {
    "frequency_penalty", "presence_penalty", "logit_bias", "best_of", "suffix", "echo", "tool_choice",
    "parallel_tool_calls", "stream_options.include_usage", "response_format",
}  # fmt: skip


@pytest_asyncio.fixture(params=["everything", "guide", "engine-wide"], scope="module", loop_scope="module")
async def server(
    request: pytest.FixtureRequest, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Live]:
    folder = tmp_path_factory.mktemp("smollm2")
    (folder / smollm2_path.name).symlink_to(smollm2_path)
    (folder / "chat_template.jinja").write_text(templates.CHATML_JSON)  # its own does not show tools
    options = {"capability_set": request.param, "script": "one two three"}
    args = EngineArgs(model=str(folder), backend="echo", backend_options=options, placement="thread")
    async with live(AsyncLLM(args)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(server: Live) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        yield client


def whole(value: Value) -> tuple[str, dict[str, Any]]:
    if value.endpoint == CHAT:
        return CHAT_PATH, {"messages": [USER], "max_tokens": 4, **value.body}
    return COMPLETIONS_PATH, {"prompt": "Hi", "max_tokens": 4, **value.body}


async def check_refusal(response: httpx.Response, param: str, note: str) -> None:
    assert response.status_code == 400, f"{note}: {response.status_code} {response.text}"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, None), note
    assert param.split(".")[-1] in error["message"], note


async def test_every_row_has_values() -> None:
    for endpoint in BOTH:
        assert {next(iter(value.body)) for value in VALUES if value.endpoint == endpoint} == set(rows(endpoint))


async def test_values_are_served_or_refused_as_the_engine_declares(server: Live, client: httpx.AsyncClient) -> None:
    capabilities: Capabilities = server.app.service.models.default.client.capabilities
    refused: set[str] = set()
    for value in VALUES:
        path, body = whole(value)
        response = await client.post(path, json=body)
        note = json.dumps(value.body)
        if not value.accepted_by(capabilities):
            await check_refusal(response, value.named, note)
            refused.add(value.named)
            continue
        assert response.status_code == 200, f"{note}: {response.text}"
        assert "x-pocketllm-ignored-fields" not in response.headers, note
        if body.get("stream"):
            assert "error" not in response.text, note
            events_of(response.text)
        else:
            prompts = body.get("prompt", "")
            num_prompts = len(prompts) if isinstance(prompts, list) and not isinstance(prompts[0], int) else 1
            indices = [choice["index"] for choice in response.json()["choices"]]
            assert indices == list(range(num_prompts * body.get("n", 1))), note
    if capabilities.details["capability_set"] == "guide":
        assert refused >= GUIDE_REFUSES


async def test_wrong_values_are_refused_everywhere(client: httpx.AsyncClient) -> None:
    for value in WRONG:
        path, body = whole(value)
        await check_refusal(await client.post(path, json=body), value.named, json.dumps(value.body)[:100])


async def test_numbers_that_json_does_not_have(client: httpx.AsyncClient) -> None:
    for name in ("temperature", "top_p", "presence_penalty", "timeout", "n"):
        for number in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999"):
            data = f'{{"prompt": "x", "{name}": {number}}}'
            response = await client.post(COMPLETIONS_PATH, content=data, headers={"content-type": "application/json"})
            assert response.status_code == 400, f"{name} = {number}: {response.text}"


async def test_null_is_absent_for_every_field(client: httpx.AsyncClient) -> None:
    for endpoint, path, needed in (
        (CHAT, CHAT_PATH, {"messages": [USER]}),
        ("completions", COMPLETIONS_PATH, {"prompt": "x"}),
    ):
        response = await client.post(path, json={**dict.fromkeys(rows(endpoint)), **needed})
        assert response.status_code == 200, response.text
        assert "x-pocketllm-ignored-fields" not in response.headers


async def test_models_tell_what_is_served(server: Live, client: httpx.AsyncClient) -> None:
    (card,) = (await client.get("/v1/models")).json()["data"]
    capabilities: Capabilities = server.app.service.models.default.client.capabilities
    for endpoint in BOTH:
        told = set(card["supported_fields"][endpoint])
        for name, row in rows(endpoint).items():
            served = not row.inert and (not row.needs or capabilities.supports(row.needs))
            assert (name in told) is served, name
    assert card["capabilities"]["supports_logprobs"] is capabilities.supports_logprobs


async def test_echo_scores_a_real_prompt(server: Live, client: httpx.AsyncClient) -> None:
    if not server.app.service.models.default.client.capabilities.supports_prompt_logprobs:
        return  # refused, as the table of values shows
    prompt = "Zürich liegt 😊 am See"
    body = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": 3}
    choice = (await client.post(COMPLETIONS_PATH, json=body)).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == prompt + "one two three"
    assert logprobs["token_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    exact = b"".join(bytes(entry["bytes"]) for entry in logprobs["content"])
    assert exact.decode() == choice["text"]
    starts = [
        choice["text"][offset : offset + len(token)]
        for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True)
    ]
    whole_tokens = [
        (start, token) for start, token in zip(starts, logprobs["tokens"], strict=True) if "\ufffd" not in token
    ]
    assert len(whole_tokens) > 8
    assert all(start == token for start, token in whole_tokens)
