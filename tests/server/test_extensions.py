"""What an extension does reaches an HTTP caller as it reaches a Python one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pocketllm.async_llm import AsyncLLM
from pocketllm.checkpoint import open_checkpoint
from pocketllm.engine_args import EngineArgs
from tests.host.sample_extensions import Cache, Clumsy, Observer, Refuser, Shout, echo_with
from tests.server.live import Live, live


@asynccontextmanager
async def serving(path: Path, **extensions: object) -> AsyncIterator[Live]:
    args = EngineArgs(model=str(path), backend="echo", placement="thread", max_batch_size=4)
    llm = AsyncLLM(args, registry=echo_with(**extensions))
    # Not until /ready: an extension that always raises also fails the server's first forward pass.
    async with live(llm, wait=False) as server:
        await llm.ready()
        yield server


async def _ask(server: Live, prompt: str, *, stream: bool = False) -> tuple[int, Any]:
    body = {"prompt": prompt, "stream": stream}
    async with httpx.AsyncClient() as client:
        response = await client.post(f"{server.url}/v1/completions", json=body, timeout=20)
    if not stream or response.status_code != 200:
        return response.status_code, response.json()
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return response.status_code, [json.loads(line) for line in lines[:-1]]


def _text(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk.get("choices"))


async def test_an_observer_and_an_altered_text(toy_path: Path) -> None:
    observer = Observer()
    async with serving(toy_path, observer=observer, shout=Shout()) as server:
        status, answer = await _ask(server, "abc")
        assert (status, answer["choices"][0]["text"]) == (200, "ABC!")
        assert observer.seen[0]
        status, chunks = await _ask(server, "abc", stream=True)
        assert _text(chunks) == "ABC!"


async def test_a_refusal_is_a_400_in_openais_shape(toy_path: Path) -> None:
    async with serving(toy_path, refuser=Refuser()) as server:
        for stream in (False, True):
            status, answer = await _ask(server, "a long prompt " * 5, stream=stream)
            assert status == 400
            assert answer["error"]["param"] == "prompt"
            assert "at this hour" in answer["error"]["message"]
        assert (await _ask(server, "abc"))[0] == 200


async def test_an_extension_may_answer_from_a_cache(toy_path: Path) -> None:
    answer_ids = open_checkpoint(toy_path).tokenizer().encode("from the cache")
    async with serving(toy_path, cache=Cache(answer_ids)) as server:
        _, answer = await _ask(server, "\x01\x02\x03")
        assert answer["choices"][0]["text"] == "from the cache"
        assert answer["usage"]["completion_tokens"] == len(answer_ids)
        _, chunks = await _ask(server, "\x01\x02\x03", stream=True)
        assert _text(chunks) == "from the cache"


@pytest.mark.parametrize("place", ["before", "after", "factory", "token stage", "text stage", "text finish"])
async def test_one_that_raises_is_named_and_harms_nobody_else(toy_path: Path, place: str) -> None:
    async with serving(toy_path, clumsy=Clumsy(place)) as server:
        status, answer = await _ask(server, "abc")
        assert status == 500
        assert answer["error"]["code"] == "plugin_error"
        assert "'clumsy'" in answer["error"]["message"]
        assert "Traceback" not in answer["error"]["message"]
        status, answer = await _ask(server, "abc", stream=True)
        if status == 200:
            assert place in ("token stage", "text stage", "text finish")
            assert "'clumsy'" in answer[-1]["error"]["message"]
            assert answer[-1]["error"]["code"] == "plugin_error"
        else:
            assert answer["error"]["code"] == "plugin_error"
        async with asyncio.timeout(10):
            async with httpx.AsyncClient() as client:
                # Whether the first forward pass met the fault depends on the place; either way the probe answers.
                assert (await client.get(f"{server.url}/ready")).status_code in (200, 503)
                assert (await client.get(f"{server.url}/health")).status_code == 200
