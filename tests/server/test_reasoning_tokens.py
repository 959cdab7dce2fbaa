"""Reasoning is counted apart, in the words of each endpoint, streamed or not."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio

from pocketllm.async_llm import AsyncLLM
from pocketllm.engine_args import EngineArgs
from pocketllm.testing.toy_checkpoint import write_toy_checkpoint
from tests.server.http_app import CHAT, COMPLETIONS, events_of
from tests.server.live import live
from tests.text import templates

THOUGHT = "<think>\nabcdefgh\n</think>\n\nxyz"
"""Eight tokens of thought in the toy's vocabulary, which has a token for each of these letters."""
PROMPTS: dict[str, str] = {"think": THOUGHT, "cut": "<think>\nabcdefgh", "plain": "xyz"}


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    folder = tmp_path / "model"
    shutil.copytree(write_toy_checkpoint(tmp_path / "toy"), folder)
    (folder / "chat_template.jinja").write_text(templates.CHATML_JSON)
    script = {"match": [[f"say {name}", text] for name, text in PROMPTS.items()]}
    args = EngineArgs(model=str(folder), backend="echo", placement="thread", backend_options={"script": script})
    async with live(AsyncLLM(args)) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
            yield client


async def post(client: httpx.AsyncClient, path: str, name: str, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": f"say {name}"}]
    body = {"messages": messages, "max_tokens": 200, "reasoning_effort": "low", **fields}
    if path == "/v1/responses":
        body = {"input": f"say {name}", "reasoning": {"effort": "low"}, **fields}
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


async def test_chat_usage_counts_reasoning_tokens(client: httpx.AsyncClient) -> None:
    for name, count in (("think", 8), ("cut", 8)):
        for n in (1, 3):
            answer = (await post(client, CHAT, name, n=n)).json()
            assert answer["choices"][0]["message"]["reasoning_content"] == "abcdefgh"
            assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": count * n}
            assert answer["usage"]["completion_tokens"] > count * n
    assert "completion_tokens_details" not in (await post(client, CHAT, "plain")).json()["usage"]
    plain = await client.post(COMPLETIONS, json={"prompt": "say think", "max_tokens": 50})
    assert "completion_tokens_details" not in plain.json()["usage"]


async def test_a_stream_counts_the_same_reasoning_tokens(client: httpx.AsyncClient) -> None:
    plain = (await post(client, CHAT, "think", n=2)).json()["usage"]
    streamed = await post(client, CHAT, "think", n=2, stream=True, stream_options={"include_usage": True})
    assert events_of(streamed.text)[-1]["usage"] == plain


async def test_responses_usage_counts_reasoning_tokens(client: httpx.AsyncClient) -> None:
    for name, count in (("think", 8), ("plain", 0)):
        usage = (await post(client, "/v1/responses", name)).json()["usage"]
        assert usage["output_tokens_details"] == {"reasoning_tokens": count}
