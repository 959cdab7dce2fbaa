"""The openai client against the whole stack: Hypercorn, AsyncLLM, an engine in a child process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from pocketllm import EngineArgs
from pocketllm.async_llm import AsyncLLM
from tests.server.http_app import until
from tests.server.live import Live, live

MESSAGES: Any = [{"role": "user", "content": "one two three four five six seven eight"}]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(params=["thread", "child"], scope="module", loop_scope="module")
async def server(request: pytest.FixtureRequest, smollm2_path: Path) -> AsyncIterator[Live]:
    options = {"delay_s": 0.01}
    args = EngineArgs(
        model=str(smollm2_path), backend="echo", backend_options=options, placement=request.param, max_batch_size=8
    )
    async with live(AsyncLLM(args)) as running:
        yield running


def client_for(server: Live) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def stats(server: Live) -> Any:
    return server.app.service.models.default.client.stats()


async def test_the_openai_client_reads_a_chat_answer(server: Live) -> None:
    async with client_for(server) as client:
        answer = await client.chat.completions.create(model="any", messages=MESSAGES)
        assert answer.choices[0].message.content == MESSAGES[0]["content"]
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 9
        short = await client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=3, stop=["three"])
        assert short.choices[0].message.content == "one two "
        assert [model.id for model in (await client.models.list()).data] == ["tiny"]


async def test_the_openai_client_reads_a_chat_stream(server: Live) -> None:
    async with client_for(server) as client:
        stream = await client.chat.completions.create(model="any", messages=MESSAGES, stream=True, n=2)
        texts, reasons = {0: "", 1: ""}, {}
        async for chunk in stream:
            (choice,) = chunk.choices
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert texts == dict.fromkeys((0, 1), MESSAGES[0]["content"])
    assert reasons == {0: "stop", 1: "stop"}


async def test_the_openai_client_reads_completions(server: Live) -> None:
    async with client_for(server) as client:
        answer = await client.completions.create(model="any", prompt=["a b c", "d"], max_tokens=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text == "a b"


async def test_stream_closed_early_frees_its_slot(server: Live) -> None:
    async with client_for(server) as client:
        long: Any = [{"role": "user", "content": "word " * 2000}]
        stream = await client.chat.completions.create(model="any", messages=long, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        # A child reports its counters every few seconds.
        await until(lambda: stats(server).num_running == 1, 10)
        await stream.close()
        await until(lambda: stats(server).num_running == 0, 10)
        assert server.app.service.models.num_active == 0


async def test_cancellation_by_the_id_of_the_stream(server: Live) -> None:
    async with client_for(server) as client:
        long: Any = [{"role": "user", "content": "word " * 2000}]
        stream = await client.chat.completions.create(model="any", messages=long, stream=True)
        reason = None
        async for chunk in stream:
            if chunk.choices[0].delta.content and reason is None:
                await client.delete(f"/requests/{chunk.id}", cast_to=object)
                reason = "asked"
            reason = chunk.choices[0].finish_reason or reason
    assert reason == "cancelled"


async def test_refusal_reaches_the_client_as_its_own_error(server: Live) -> None:
    async with client_for(server) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="any", messages=MESSAGES, web_search_options={})
    assert caught.value.param == "web_search_options"
    assert caught.value.type == "invalid_request_error"


async def test_thirty_two_streams_at_once_and_a_health_probe_beside(server: Live) -> None:
    async with client_for(server) as client:

        async def one(number: int) -> str:
            words = f"stream number {number} " * 3
            stream = await client.completions.create(model="any", prompt=words, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        streams = [asyncio.create_task(one(number)) for number in range(32)]
        probes = 0
        while not all(task.done() for task in streams):
            response = await client.get("/../health", cast_to=object)
            assert response
            probes += 1
            await asyncio.sleep(0.01)
        texts = [task.result() for task in streams]
    assert texts == [f"stream number {number} " * 3 for number in range(32)]
    assert probes > 3
