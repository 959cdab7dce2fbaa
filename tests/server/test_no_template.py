"""Checkpoints that cannot show tools, for want of a chat template or by one that never mentions them: they are refused
instead of dropped. Without a template conversations are served as plain lines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pocketllm.async_llm import AsyncLLM
from pocketllm.engine_args import EngineArgs
from pocketllm.testing.toy_checkpoint import write_toy_checkpoint
from tests.server.field_values import TOOL
from tests.server.http_app import CHAT
from tests.server.live import live

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


SILENT = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


@pytest_asyncio.fixture(params=[None, SILENT], ids=["no template", "a silent template"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    folder = write_toy_checkpoint(tmp_path / "toy")
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    settings["chat_template"] = request.param
    config.write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))
    async with live(AsyncLLM(EngineArgs(model=str(folder), backend="echo", placement="thread"))) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
            yield client


async def test_without_a_template_messages_become_plain_lines(client: httpx.AsyncClient) -> None:
    assert (await client.post("/apply-template", json=HELLO)).json() == {"prompt": "user: Hi\nassistant:"}
    num_tokens = (await client.post("/tokenize", json={"content": "user: Hi\nassistant:"})).json()["count"]
    accepted: list[dict[str, Any]] = [{}, {"tools": []}, {"tools": [TOOL], "tool_choice": "none"}]
    for fields in accepted:
        response = await client.post(CHAT, json={**HELLO, **fields})
        assert response.status_code == 200, response.text
        assert response.json()["usage"]["prompt_tokens"] == num_tokens


@pytest.mark.parametrize(
    "path, body",
    [
        (CHAT, {**HELLO, "tools": [TOOL]}),
        (CHAT, {**HELLO, "tools": [TOOL], "stream": True}),
        ("/apply-template", {**HELLO, "tools": [TOOL]}),
        ("/v1/responses", {"input": "Hi", "tools": [{"type": "function", "name": "f"}]}),
    ],
)
async def test_without_a_template_tools_are_refused(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    response = await client.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == "tools"
    assert "chat template" in error["message"]


async def test_messages_without_a_template_refuse_tools_too(client: httpx.AsyncClient) -> None:
    body = {**HELLO, "max_tokens": 4, "tools": [{"name": "f", "input_schema": {"type": "object"}}]}
    response = await client.post("/v1/messages", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert "tools" in response.json()["error"]["message"]
