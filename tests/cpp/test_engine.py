"""The native engine behind core's API: ends, cancellation, reuse, and what a batch may not change."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketllm import LLM, AsyncLLM, EngineArgs, SamplingParams
from pocketllm.checkpoint import open_checkpoint
from pocketllm.errors import BackendUnavailableError, UnsupportedFeatureError
from pocketllm.structured.c_functions import num_held_matchers
from pocketllm.types import Constraint, TokenFlag
from pocketllm_cpp import constraints
from tests.cpp.driving import CppDriver

PROMPT = [5, 9, 41, 77, 200, 31, 8, 160]


def args_for(path: Path, **args: object) -> EngineArgs:
    values = {"max_batch_size": 4, "max_model_len": 512, **args}
    return EngineArgs(model=str(path), backend="cpp", backend_options={"num_threads": 2}, **values)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def llm(toy_path: Path) -> Iterator[LLM]:
    with LLM(args_for(toy_path)) as llm:
        yield llm


def test_auto_takes_the_native_engine_here(toy_path: Path) -> None:
    with LLM(EngineArgs(model=str(toy_path), device="cpu", max_model_len=64)) as llm:
        assert llm.capabilities.name == "cpp"


def test_the_first_end_token_ends_a_request_and_counts(toy_path: Path, llm: LLM) -> None:
    endless = SamplingParams(max_tokens=12, ignore_eos=True)
    (whole,) = llm.generate([PROMPT], endless)
    assert whole.finish_reason == "length"
    assert whole.usage.completion_tokens == 12
    stop = whole.token_ids[5]
    first = whole.token_ids.index(stop)
    options = {"num_threads": 1, "eos_token_id": stop}
    with LLM(EngineArgs(model=str(toy_path), backend="cpp", max_model_len=512, backend_options=options)) as ending:
        (result,) = ending.generate([PROMPT], SamplingParams(max_tokens=12))
        assert result.finish_reason == "stop"
        assert result.token_ids == whole.token_ids[:first]
        assert result.usage.completion_tokens == first + 1
        streamed = list(ending.generate_stream(PROMPT, SamplingParams(max_tokens=12)))
        assert "".join(event.text for event in streamed) == result.text
        assert streamed[-1].usage is not None
        assert streamed[-1].usage.completion_tokens == first + 1
        # Nothing was generated past the end, so what follows reuses a sequence that the caller has seen.
        (again,) = ending.generate([[*PROMPT, *result.token_ids]], SamplingParams(max_tokens=1))
        assert again.finish_reason == "stop"


def test_a_budget_that_ends_first_says_length(driver: CppDriver) -> None:
    stream = driver.run(PROMPT, max_tokens=4)
    assert (stream.reason, len(stream.tokens)) == ("length", 4)
    (other,) = driver.submit(PROMPT, max_tokens=4, stop_ids=(stream.tokens[0],))
    driver.wait(other)
    assert (other.reason, other.tokens) == ("stop", stream.tokens[:1])
    assert other.flags == [TokenFlag.STOP]


def test_output_does_not_depend_on_the_batch(driver: CppDriver) -> None:
    prompts = [[(7 * index + step) % 250 + 3 for step in range(20 + 9 * index)] for index in range(6)]
    alone = [driver.run(prompt, max_tokens=10, logprobs=True, top_logprobs=3) for prompt in prompts]
    together = [
        driver.submit(prompt, max_tokens=10, logprobs=True, top_logprobs=3)[0] for prompt in [*prompts, *prompts]
    ]
    driver.wait()
    for index, stream in enumerate(together):
        expected = alone[index % len(prompts)]
        assert stream.tokens == expected.tokens
        assert [(row.logprob, row.top) for row in stream.logprobs] == [
            (row.logprob, row.top) for row in expected.logprobs
        ]


def test_choices_share_a_prompt_and_have_seeds_of_their_own(driver: CppDriver) -> None:
    streams = driver.submit(PROMPT * 8, n=4, temperature=1.5, max_tokens=12, seed=11)
    driver.wait()
    assert len({tuple(stream.tokens) for stream in streams}) > 1
    stats = driver.engine.pocketllm_stats()
    assert stats.num_prompt_tokens == len(PROMPT) * 8, "the prompt was computed once"
    again = driver.submit(PROMPT * 8, n=4, temperature=1.5, max_tokens=12, seed=11)
    driver.wait()
    assert [stream.tokens for stream in again] == [stream.tokens for stream in streams]


def test_a_shared_prefix_is_computed_once(driver: CppDriver) -> None:
    prefix = [(11 * step) % 250 + 3 for step in range(160)]
    streams = [driver.submit([*prefix, 3 + index], max_tokens=4)[0] for index in range(1)]
    driver.wait()
    streams += [driver.submit([*prefix, 3 + index], max_tokens=4)[0] for index in range(1, 20)]
    driver.wait()
    stats = driver.engine.pocketllm_stats()
    assert stats.num_prompt_tokens < len(prefix) + 20 * 20
    assert all(stream.prompt is not None for stream in streams)
    assert sum(stream.prompt.num_cached_tokens >= 144 for stream in streams if stream.prompt is not None) >= 19


def test_reuse_changes_no_bit(toy_path: Path) -> None:
    prefix = [(11 * step) % 250 + 3 for step in range(100)]
    results = []
    for prefix_cache in (True, False):
        with CppDriver.open(
            toy_path, options={"num_threads": 1, "prefix_cache": prefix_cache}, max_model_len=512
        ) as driver:
            assert driver.engine.pocketllm_capabilities().supports_prefix_caching is prefix_cache
            streams = [driver.run([*prefix, 3 + index], max_tokens=6, logprobs=True) for index in range(3)]
            results.append([(s.tokens, [row.logprob for row in s.logprobs]) for s in streams])
            reused = [s.prompt.num_cached_tokens for s in streams if s.prompt is not None]
            assert (max(reused) > 0) is prefix_cache
    assert results[0] == results[1]


def test_cancellation_ends_between_steps(driver: CppDriver) -> None:
    # On a loaded machine the small model may reach its end before the cancel does; a deaf engine reaches it every time.
    for _ in range(20):
        (stream,) = driver.submit(PROMPT, max_tokens=400)
        driver.wait_for_tokens(stream, 3)
        driver.cancel(stream)
        driver.wait(stream)
        if stream.reason == "cancelled":
            break
    assert stream.reason == "cancelled"
    assert len(stream.tokens) < 400
    driver.cancel(stream)
    driver.engine.pocketllm_cancel(10**9, "client")
    assert driver.engine.pocketllm_stats().num_running == 0
    assert driver.run(PROMPT, max_tokens=2).reason == "length"


async def test_async_streams_and_a_cancelled_one(toy_path: Path) -> None:
    async with AsyncLLM(args_for(toy_path)) as llm:
        assert llm.capabilities.name == "cpp"

        async def read(index: int) -> str:
            params = SamplingParams(max_tokens=20, ignore_eos=True)
            return "".join([event.text async for event in llm.generate_stream([*PROMPT, 3 + index], params)])

        texts = await asyncio.gather(*(read(index) for index in range(8)))
        assert texts == [await read(index) for index in range(8)]
        count = 0
        async for _ in llm.generate_stream(PROMPT, SamplingParams(max_tokens=400, ignore_eos=True)):
            count += 1
            if count == 3:
                break
        (result,) = await llm.generate([PROMPT], SamplingParams(max_tokens=2, ignore_eos=True))
        assert result.finish_reason == "length"


def test_an_engine_that_was_closed_refuses(toy_path: Path) -> None:
    driver = CppDriver.open(toy_path, options={"num_threads": 1}, max_model_len=512)
    streams = [driver.submit(PROMPT, max_tokens=400)[0] for _ in range(3)]
    driver.engine.pocketllm_close(10.0)
    driver.engine.pocketllm_close(10.0)
    driver.read()
    assert {stream.reason for stream in streams} <= {"cancelled", "length"}
    with pytest.raises(BackendUnavailableError):
        driver.submit(PROMPT, max_tokens=2)
    for _ in range(2):
        driver.engine.events.close()
        assert driver.engine.events.drain() == []
        driver.engine.pocketllm_close(10.0)
        driver.engine.pocketllm_cancel(1, "client")
        assert driver.engine.pocketllm_stats().num_running == 0
    with pytest.raises(BackendUnavailableError):
        driver.submit(PROMPT, max_tokens=2)


def test_a_refused_request_releases_its_matchers(toy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "grammar_functions", lambda: None)
    driver = CppDriver.open(toy_path, options={"num_threads": 1}, max_model_len=64)
    constraint = Constraint(kind="regex", text="[a-z]+")
    (stream,) = driver.submit_constrained(PROMPT, constraint, stop_ids=(0,), max_tokens=4)
    driver.wait(stream)
    assert stream.reason in ("length", "stop")
    for close in (lambda: driver.engine.pocketllm_close(10.0), driver.engine.events.close):
        close()
        with pytest.raises(BackendUnavailableError):
            driver.submit_constrained(PROMPT, constraint, stop_ids=(0,), max_tokens=4, n=3)
        assert num_held_matchers() == 0


def test_ids_outside_the_vocabulary_are_refused(driver: CppDriver) -> None:
    for prompt, params in (([10**6], {}), ([3], {"logit_bias": {10**6: 1.0}})):
        with pytest.raises(UnsupportedFeatureError, match="outside this model's"):
            driver.submit(prompt, **params)


@pytest.mark.parametrize("after", ["", "</think>"], ids=["native", "behind reasoning"])
def test_a_constraint_is_enforced(driver: CppDriver, toy_path: Path, after: str) -> None:
    constraint = Constraint(kind="regex", text="(yes|no), [a-z]{3}", after=after)
    streams = driver.submit_constrained(PROMPT, constraint, stop_ids=(0,), n=3, temperature=1.5, seed=3, max_tokens=40)
    driver.wait()
    tokenizer = open_checkpoint(toy_path).tokenizer()
    for stream in streams:
        text = b"".join(map(tokenizer.token_bytes, stream.tokens[:-1])).decode("utf-8", "replace")
        if after:
            assert stream.reason in ("stop", "length")
            assert "</think>" in text or stream.reason == "length"
        else:
            assert re.fullmatch("(yes|no), [a-z]{3}", text)
            assert stream.reason == "stop"
    assert num_held_matchers() == 0


def test_an_llm_that_nobody_closes_lets_the_program_end(toy_path: Path) -> None:
    import subprocess
    import sys

    program = f"""
from pocketllm import LLM, EngineArgs, SamplingParams
llm = LLM(EngineArgs(model={str(toy_path)!r}, backend="cpp", max_model_len=512))
stream = llm.generate_stream([5, 9, 41], SamplingParams(max_tokens=500, ignore_eos=True))
print(next(stream).token_ids != ())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
