"""LLM and AsyncLLM: inputs, results, streams, many threads, many tasks."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pocketllm.async_llm import AsyncLLM
from pocketllm.engine_args import EngineArgs
from pocketllm.errors import (
    BackendUnavailableError,
    ConfigurationError,
    ModelNotFoundError,
    RequestCancelledError,
    UnsupportedFeatureError,
)
from pocketllm.llm import LLM
from pocketllm.sampling_params import SamplingParams

SLOW = {"script": "word " * 200, "delay_s": 0.01}
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "say this"}]


def _args(path: Path, **fields: Any) -> EngineArgs:
    return EngineArgs(model=str(path), backend="echo", placement="thread", **fields)


@pytest.fixture
def llm(toy_path: Path) -> Iterator[LLM]:
    with LLM(_args(toy_path, max_batch_size=8)) as llm:
        yield llm


@pytest.fixture
async def async_llm(toy_path: Path) -> AsyncIterator[AsyncLLM]:
    async with AsyncLLM(_args(toy_path, max_batch_size=8)) as llm:
        yield llm


class TestInputs:
    def test_text_list_ids_and_lists_of_ids(self, llm: LLM) -> None:
        ids = llm.host.tokenizer.encode("two words")
        assert [result.text for result in llm.generate("two words")] == ["two words"]
        assert [result.text for result in llm.generate(["a", "b"])] == ["a", "b"]
        assert [result.text for result in llm.generate(ids)] == ["two words"]
        assert [result.text for result in llm.generate([ids, ids])] == ["two words"] * 2

    @pytest.mark.parametrize("bad", [5, None, [], [[]], [1, "a"], ["a", 1], [1.5], [True], [["a"]], b"x", {"a": 1}])
    def test_other_shapes_are_refused_by_name(self, llm: LLM, bad: Any) -> None:
        with pytest.raises(ConfigurationError) as caught:
            llm.generate(bad)
        assert caught.value.param == "prompt"

    def test_a_list_longer_than_the_limit_still_runs(self, toy_path: Path) -> None:
        with LLM(_args(toy_path, max_num_requests=3)) as llm:
            prompts = [f"prompt {number}" for number in range(10)]
            assert [result.text for result in llm.generate(prompts)] == prompts

    def test_engine_arguments_may_be_given_as_keywords(self, toy_path: Path) -> None:
        with LLM(model=str(toy_path), backend="echo") as llm:
            assert llm.generate("a")[0].text == "a"
        with LLM(toy_path, backend="echo") as llm:
            assert llm.generate("a")[0].text == "a"
        with pytest.raises(ConfigurationError, match="either args or keywords"):
            LLM(_args(toy_path), device="cpu")
        with pytest.raises(ConfigurationError, match="either args or keywords"):
            LLM(str(toy_path), model=str(toy_path))
        with pytest.raises(ConfigurationError, match=r"args = 5 is neither an EngineArgs nor"):
            LLM(5)  # type: ignore[arg-type]  # what a caller without a type checker may write

    def test_a_model_that_is_not_there(self) -> None:
        with pytest.raises(ModelNotFoundError):
            LLM(EngineArgs(model="no-such-model", backend="echo"))

    def test_what_is_not_declared_is_refused_here_too(self, toy_path: Path) -> None:
        with LLM(_args(toy_path, backend_options={"capability_set": "guide"})) as llm:
            with pytest.raises(UnsupportedFeatureError) as caught:
                llm.generate("a", SamplingParams(repetition_penalty=1.2))
            assert caught.value.param == "repetition_penalty"
            with pytest.raises(UnsupportedFeatureError) as caught:
                llm.chat(MESSAGES, tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="required")
            assert caught.value.param == "tool_choice"
            assert llm.generate("a", SamplingParams(logprobs=True))[0].logprobs
            with pytest.raises(UnsupportedFeatureError) as caught:
                llm.generate_stream("a", SamplingParams(logprobs=True))
            assert caught.value.param == "logprobs"

    def test_an_engine_that_fixes_its_sampling_serves_callers_who_say_nothing(self, toy_path: Path) -> None:
        options = {"capability_set": "engine-wide", "temperature": 0.5}
        with LLM(_args(toy_path, backend_options=options)) as llm:
            assert llm.generate("a")[0].text
            assert llm.generate("a", SamplingParams(max_tokens=4))[0].text
            assert llm.chat(MESSAGES)[0].text
            with pytest.raises(UnsupportedFeatureError, match=r"uses temperature = 0\.5"):
                llm.generate("a", SamplingParams(temperature=0.0))


class TestChat:
    def test_chat_gives_one_result_and_mutates_nothing(self, llm: LLM) -> None:
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        messages = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "ok"}]}]  # fmt: skip
        before = copy.deepcopy((messages, tools))
        results = llm.chat(
            messages, SamplingParams(max_tokens=5), tools=tools, tool_choice="auto", reasoning_effort="low"
        )
        assert len(results) == 1
        assert (messages, tools) == before

    def test_chat_stream_adds_up_to_chat(self, llm: LLM) -> None:
        (result,) = llm.chat(MESSAGES)
        events = list(llm.chat_stream(MESSAGES))
        assert "".join(event.text for event in events) == result.text
        assert events[-1].usage == result.usage

    def test_unknown_arguments_are_named(self, llm: LLM) -> None:
        with pytest.raises(ConfigurationError, match="no argument 'temprature'"):
            llm.chat(MESSAGES, temprature=1)


class TestThreads:
    def test_many_threads_get_their_own_answers(self, llm: LLM) -> None:
        def ask(number: int) -> bool:
            prompt = f"prompt number {number}"
            if number % 2:
                return "".join(event.text for event in llm.generate_stream(prompt)) == prompt
            return llm.generate(prompt)[0].text == prompt

        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(ask, range(64)))
        assert llm.host.num_active == 0

    def test_a_stream_can_be_cancelled_from_another_thread(self, toy_path: Path) -> None:
        with LLM(_args(toy_path, backend_options=SLOW)) as llm:
            stream = llm.generate_stream("x", request_id="mine")
            next(stream)
            assert llm.cancel("mine")
            assert not llm.cancel("mine")
            assert not llm.cancel("other")
            assert list(stream)[-1].finish_reason == "cancelled"
            errors: list[BaseException] = []

            def generate() -> None:
                try:
                    llm.generate(["x", "y"], request_id="both")
                except RequestCancelledError as error:
                    errors.append(error)

            thread = threading.Thread(target=generate)
            thread.start()
            while not llm.cancel("both"):
                pass
            thread.join(20)
            assert len(errors) == 1
            assert llm.host.wait_idle(10)

    def test_leaving_a_stream_early_frees_the_engine(self, toy_path: Path) -> None:
        with LLM(_args(toy_path, backend_options=SLOW)) as llm:
            for event in llm.generate_stream("x"):
                assert event.text
                break
            assert llm.host.wait_idle(5)

    def test_a_reader_that_left_is_at_its_end(self, toy_path: Path) -> None:
        with LLM(_args(toy_path, backend_options=SLOW)) as llm:
            stream = llm.generate_stream("x")
            next(stream)
            stream.close()  # type: ignore[attr-defined]  # readers can be closed like generators
            assert list(stream) == []

    def test_after_close_everything_says_so(self, toy_path: Path) -> None:
        llm = LLM(_args(toy_path))
        llm.close()
        llm.close()
        with pytest.raises(BackendUnavailableError, match="closed"):
            llm.generate("a")

    def test_close_ends_a_reader_in_another_thread(self, toy_path: Path) -> None:
        llm = LLM(_args(toy_path, backend_options=SLOW))
        stream = llm.generate_stream("x")
        next(stream)
        reasons: list[str | None] = []
        thread = threading.Thread(target=lambda: reasons.append(list(stream)[-1].finish_reason))
        thread.start()
        llm.close()
        thread.join(20)
        assert reasons == ["cancelled"]


class TestAsync:
    async def test_both_apis_give_the_same_answers(self, async_llm: AsyncLLM) -> None:
        assert (await async_llm.generate("hello"))[0].text == "hello"
        assert [result.text for result in await async_llm.generate(["a", "b"])] == ["a", "b"]
        (chat,) = await async_llm.chat(MESSAGES)
        streamed = [event async for event in async_llm.chat_stream(MESSAGES)]
        assert "".join(event.text for event in streamed) == chat.text
        assert streamed[-1].usage == chat.usage

    async def test_many_tasks_and_no_thread_per_request(self, async_llm: AsyncLLM) -> None:
        before = threading.active_count()
        peak = 0

        async def ask(number: int) -> bool:
            nonlocal peak
            prompt = f"prompt number {number}"
            text = ""
            async for event in async_llm.generate_stream(prompt):
                text += event.text
                peak = max(peak, threading.active_count())
            return text == prompt

        assert all(await asyncio.gather(*(ask(number) for number in range(100))))
        assert peak <= before + 2

    async def test_a_cancelled_task_frees_the_engine(self, toy_path: Path) -> None:
        async with AsyncLLM(_args(toy_path, backend_options=SLOW)) as llm:

            async def read() -> None:
                async for _ in llm.generate_stream("x"):
                    pass

            for call in (read, lambda: llm.generate("x")):
                task = asyncio.create_task(call())
                await asyncio.to_thread(_wait_active, llm)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                for _ in range(200):
                    if llm.host.num_active == 0:
                        break
                    await asyncio.sleep(0.01)
                assert llm.host.num_active == 0

    async def test_start_does_not_wait_and_ready_does(self, toy_path: Path) -> None:
        llm = AsyncLLM(_args(toy_path))
        await llm.start()
        assert llm.health().status == "loading"
        with pytest.raises(BackendUnavailableError):
            _ = llm.capabilities
        await llm.ready()
        assert llm.health().ready
        await llm.close()
        with pytest.raises(BackendUnavailableError, match="closed"):
            await llm.generate("x")

    async def test_a_failed_load_raises_its_own_error(self, toy_path: Path) -> None:
        llm = AsyncLLM(_args(toy_path, backend_options={"capability_set": "nonsense"}))
        with pytest.raises(ConfigurationError, match="capability_set"):
            await llm.ready()
        await llm.close()

    async def test_drain_lets_requests_end_and_then_cancels(self, toy_path: Path) -> None:
        async with AsyncLLM(_args(toy_path, backend_options=SLOW)) as llm:
            stream = llm.generate_stream("x")
            await anext(stream)
            assert not await llm.drain(0.05)
            events = [event async for event in stream]
            assert events[-1].finish_reason == "cancelled"
            with pytest.raises(BackendUnavailableError, match="shutting down"):
                await llm.generate("x")

    async def test_a_long_prompt_is_prepared_off_the_loop(self, async_llm: AsyncLLM) -> None:
        prompt = "x" * 3_000
        with pytest.raises(ConfigurationError, match="context"):
            await async_llm.generate(prompt)

    async def test_a_stream_ends_when_it_is_cancelled_or_its_llm_closes(self, toy_path: Path) -> None:
        async with AsyncLLM(_args(toy_path, backend_options=SLOW)) as llm:
            stream = llm.generate_stream("x", request_id="mine")
            await anext(stream)
            assert llm.cancel("mine")
            assert [event async for event in stream][-1].finish_reason == "cancelled"
            stream = llm.generate_stream("x")
            await anext(stream)
            await llm.close()
            assert [event async for event in stream][-1].finish_reason == "cancelled"

    def test_an_async_llm_belongs_to_one_event_loop(self, toy_path: Path) -> None:
        llm = AsyncLLM(_args(toy_path))

        async def use() -> None:
            await llm.ready()

        async def leave() -> None:
            await llm.close()

        async def both() -> None:
            await use()
            await leave()

        asyncio.run(both())
        with pytest.raises(ConfigurationError, match="another event loop"):
            asyncio.run(use())


def _wait_active(llm: AsyncLLM) -> None:
    while llm.host.num_active == 0:
        time.sleep(0.005)
