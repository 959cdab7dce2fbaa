"""AsyncStream.forward: everything, in order, the moment it comes, and no more while its taker is busy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from pocketllm.async_llm import AsyncLLM
from pocketllm.async_stream import AsyncStream
from pocketllm.engine_args import EngineArgs
from pocketllm.errors import SlowReaderError
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import GenerationRequest, TokenEvent
from tests.server.http_app import until

WORDS = "word " * 60


@pytest.fixture
async def llm(toy_path: Path) -> AsyncIterator[AsyncLLM]:
    options = {"script": WORDS, "delay_s": 0.001}
    args = EngineArgs(
        model=str(toy_path), backend="echo", placement="thread", max_batch_size=4, backend_options=options
    )
    async with AsyncLLM(args) as llm:
        yield llm


async def ask(llm: AsyncLLM, **params: Any) -> AsyncStream:
    return await llm.submit(GenerationRequest(prompt="x", sampling_params=SamplingParams(**params)))


def text_of(events: Sequence[TokenEvent], index: int = 0) -> str:
    return "".join(event.text for event in events if event.choice_index == index)


async def test_forwarding_gives_what_iterating_gives(llm: AsyncLLM) -> None:
    iterated = [event async for event in await ask(llm)]
    taken: list[TokenEvent] = []
    await (await ask(llm)).forward(taken.extend)
    assert text_of(taken) == text_of(iterated) == WORDS
    assert taken[-1].usage == iterated[-1].usage
    assert [event.finish_reason for event in taken if event.finish_reason] == [iterated[-1].finish_reason]
    assert len(taken) > 10


async def test_an_answer_that_has_ended_is_given_at_once(llm: AsyncLLM) -> None:
    stream = await ask(llm)
    await until(lambda: stream.record.finished)
    taken: list[TokenEvent] = []
    await stream.forward(taken.extend)
    assert text_of(taken) == WORDS
    assert len(taken) == 1


async def test_it_gives_from_within_the_drain(llm: AsyncLLM) -> None:
    """No task switch: the taker runs outside of every task."""
    tasks = set()

    def take(events: Sequence[TokenEvent]) -> None:
        tasks.add(asyncio.current_task())

    await (await ask(llm)).forward(take)
    assert None in tasks


async def test_a_busy_taker_is_given_the_rest_merged(llm: AsyncLLM) -> None:
    expected = await (await ask(llm, n=2, temperature=1.0, seed=5)).result()
    stream = await ask(llm, n=2, temperature=1.0, seed=5)
    taken: list[TokenEvent] = []
    is_busy = False

    async def work() -> None:
        nonlocal is_busy
        is_busy = True
        await asyncio.sleep(0.02)
        is_busy = False

    def take(events: Sequence[TokenEvent]) -> Coroutine[Any, Any, None]:
        assert not is_busy
        taken.extend(events)
        return work()

    await stream.forward(take)
    assert not is_busy
    assert [text_of(taken, 0), text_of(taken, 1)] == [choice.text for choice in expected.choices]
    assert 1 < len(taken) < 60  # 120 tokens came meanwhile


@pytest.mark.parametrize("fails_at", [0, 3])
async def test_what_the_taker_raises_comes_out_and_the_others_go_on(llm: AsyncLLM, fails_at: int) -> None:
    num_calls = 0

    def take(events: Sequence[TokenEvent]) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls > fails_at:
            raise KeyError("a bug")

    async with await ask(llm) as broken, await ask(llm) as other:
        taken: list[TokenEvent] = []
        reading = asyncio.ensure_future(other.forward(taken.extend))
        with pytest.raises(KeyError):
            await broken.forward(take)
        assert num_calls == fails_at + 1  # nothing is given after it
        await reading
        assert text_of(taken) == WORDS


async def test_what_a_busy_taker_raises_comes_out(llm: AsyncLLM) -> None:
    async def work() -> None:
        raise KeyError("a bug")

    async with await ask(llm) as stream:
        with pytest.raises(KeyError):
            await stream.forward(lambda events: work())


async def test_a_cancelled_reader_takes_nothing_more(llm: AsyncLLM) -> None:
    taken: list[TokenEvent] = []
    async with await ask(llm) as stream:
        task = asyncio.ensure_future(stream.forward(taken.extend))
        await until(lambda: taken)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        num_taken = len(taken)
        await asyncio.sleep(0.02)
        assert len(taken) == num_taken


async def test_a_cancel_beside_a_busy_taker_leaves_no_coroutine_behind(llm: AsyncLLM) -> None:
    """Python warns of a coroutine that was never awaited, and warnings are errors here."""

    async def work() -> None:
        pass

    async with await ask(llm) as stream:

        def take(events: Sequence[TokenEvent]) -> Coroutine[Any, Any, None]:
            task.cancel()
            return work()

        task = asyncio.ensure_future(stream.forward(take))
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_closing_the_stream_ends_its_forwarding(llm: AsyncLLM) -> None:
    stream = await ask(llm)
    taken: list[TokenEvent] = []
    task = asyncio.ensure_future(stream.forward(taken.extend))
    await until(lambda: taken)
    await stream.aclose()
    await asyncio.wait_for(task, 5)
    assert len(text_of(taken)) < len(WORDS)


async def test_closing_the_model_ends_it_with_the_cancelled_end(llm: AsyncLLM) -> None:
    stream = await ask(llm)
    taken: list[TokenEvent] = []
    task = asyncio.ensure_future(stream.forward(taken.extend))
    await until(lambda: taken)
    await llm.close(0.0)
    await asyncio.wait_for(task, 5)
    assert taken[-1].finish_reason == "cancelled"


async def test_a_reader_that_was_cut_is_told(llm: AsyncLLM) -> None:
    stream = await ask(llm)
    stream._subscription._max_unread_deltas = 3

    async def work() -> None:
        await asyncio.sleep(0.1)

    with pytest.raises(SlowReaderError):
        await stream.forward(lambda events: work())
