"""Every family behind the hooks: the batch changes no bit, and a shared prefix is computed once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cpp.driving import CppDriver
from tests.cpp.tiny_checkpoints import FAMILIES, VOCAB, write_tiny
from tests.torch.driving import Stream

Answer = tuple[list[int], list[float]]


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(request.param, tmp_path_factory.mktemp("families") / "tiny").path


@pytest.fixture
def driver(checkpoint: Path) -> Iterator[CppDriver]:
    with CppDriver.open(checkpoint, options={"num_threads": 2}, max_batch_size=6, max_model_len=512) as driver:
        yield driver


def prompt_of(length: int, seed: int) -> list[int]:
    return [(37 * seed + 11 * step + step * step) % (VOCAB - 3) + 3 for step in range(length)]


def answer(stream: Stream) -> Answer:
    return stream.tokens, [row.logprob for row in stream.logprobs]


@pytest.mark.parametrize("kv_cache_dtype", ["f16", "q8_0", "f32"])
def test_output_does_not_depend_on_the_batch_or_the_chunks(checkpoint: Path, kv_cache_dtype: str) -> None:
    prompts = [prompt_of(length, length) for length in (1, 17, 64, 65, 130, 200)]
    settings = {"kv_cache_dtype": kv_cache_dtype, "max_batch_size": 6, "max_model_len": 512}
    with CppDriver.open(checkpoint, options={"num_threads": 2}, **settings) as driver:
        alone = [answer(driver.run(prompt, max_tokens=12, logprobs=True)) for prompt in prompts]
    options = {"num_threads": 1, "prefill_token_budget": 48, "prefix_cache": False}
    with CppDriver.open(checkpoint, options=options, **settings) as other:
        together = [other.submit(prompt, max_tokens=12, logprobs=True)[0] for prompt in prompts]
        other.wait()
        assert [answer(stream) for stream in together] == alone


def test_a_prefix_shared_by_twenty_requests_is_computed_once(checkpoint: Path, driver: CppDriver) -> None:
    prefix = prompt_of(256, 5)
    prompts = [[*prefix, *prompt_of(5, 100 + index)] for index in range(20)]
    (first,) = driver.submit(prefix, max_tokens=1)
    driver.wait(first)
    computed = driver.engine.pocketllm_stats().num_prompt_tokens
    assert computed == len(prefix)
    streams = [driver.submit(prompt, max_tokens=6, logprobs=True)[0] for prompt in prompts]
    driver.wait()
    stats = driver.engine.pocketllm_stats()
    assert stats.prefix_cache_hits >= 20
    # What is computed again is at most the part of a block or chunk behind the last point that was kept.
    assert stats.num_prompt_tokens - computed <= 20 * (64 + 5)
    with CppDriver.open(
        checkpoint, options={"num_threads": 2, "prefix_cache": False}, max_batch_size=6, max_model_len=512
    ) as other:
        fresh = [other.submit(prompt, max_tokens=6, logprobs=True)[0] for prompt in prompts]
        other.wait()
        assert other.engine.pocketllm_stats().num_prompt_tokens == sum(map(len, prompts))
    assert [answer(stream) for stream in streams] == [answer(stream) for stream in fresh]


def test_a_cache_of_floats_takes_twice_the_memory_of_halves(checkpoint: Path) -> None:
    sizes = {}
    for kv_cache_dtype in ("auto", "f32"):
        with CppDriver.open(checkpoint, kv_cache_dtype=kv_cache_dtype, max_batch_size=2, max_model_len=256) as driver:
            details = driver.engine.pocketllm_capabilities().details
        sizes[details["kv_cache_dtype"]] = details["kv_cache_bytes"]
    assert sizes["F32"] == 2 * sizes["F16"] > 0


def test_choices_take_over_one_prompt(driver: CppDriver) -> None:
    streams = driver.submit(prompt_of(100, 9), n=4, temperature=1.2, seed=5, max_tokens=8)
    driver.wait()
    assert driver.engine.pocketllm_stats().num_prompt_tokens == 100
    again = driver.submit(prompt_of(100, 9), n=4, temperature=1.2, seed=5, max_tokens=8)
    driver.wait()
    assert [stream.tokens for stream in again] == [stream.tokens for stream in streams]
