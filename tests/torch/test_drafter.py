"""Speculation's seat: with any proposals, right or wrong, the answers are those of an engine without a drafter."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pocketllm_torch.engine import opening
from pocketllm_torch.engine.engine import TorchEngine
from pocketllm_torch.engine.sequence import Sequence as EngineSequence
from tests.cpp.tiny_checkpoints import write_tiny
from tests.torch.driving import Driver, Stream
from tests.torch.tiny_llama import VOCAB, TinyLlama, random_ids

NUM_PROPOSED = 4


class Oracle:
    """Knows the answers, and spoils each proposed token with a probability."""

    def __init__(self, spoiled: float) -> None:
        self.answers: dict[int, list[int]] = {}
        self.num_proposed = 0
        self._spoiled = spoiled
        self._random = random.Random(7)

    def propose(self, sequences: Sequence[EngineSequence]) -> dict[int, list[int]]:
        proposals = {}
        for sequence in sequences:
            known = self.answers.get(sequence.handle, [])[sequence.num_generated :][:NUM_PROPOSED]
            proposals[sequence.handle] = [
                (token + 1) % VOCAB if self._random.random() < self._spoiled else token for token in known
            ]
            self.num_proposed += len(known)
        return proposals


@pytest.fixture
def oracle(request: pytest.FixtureRequest) -> Oracle:
    return Oracle(request.param)


@pytest.fixture
def drafting(tiny: TinyLlama, oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """An engine with the oracle as its drafter."""

    monkeypatch.setattr(opening, "TorchEngine", partial(TorchEngine, drafter=oracle))
    with Driver.open(tiny.path, dtype="float32", options={"kv_cache_bytes": 200_000}, max_model_len=200) as driver:
        yield driver


REQUESTS: tuple[dict[str, Any], ...] = (
    {"max_tokens": 30},
    {"max_tokens": 31, "temperature": 1.0, "logprobs": True, "top_logprobs": 3},
    {"max_tokens": 29, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "min_tokens": 12},
    {"max_tokens": 40, "temperature": 0.8, "n": 3},
    {"max_tokens": 12, "prompt_logprobs": True},
)


def submit_all(driver: Driver) -> list[Stream]:
    streams = [
        stream
        for index, params in enumerate(REQUESTS)
        for stream in driver.submit(random_ids(15 + index, seed=index), seed=index, stop_ids=(5, 17), **params)
    ]
    driver.wait()
    return streams


@pytest.mark.parametrize("oracle", [0.0, 0.3, 1.0], indirect=True)
def test_answers_are_the_same_with_right_and_wrong_proposals(driver: Driver, drafting: Driver, oracle: Oracle) -> None:
    expected = submit_all(driver)
    oracle.answers = {stream.handle: stream.tokens for stream in expected}
    streams = submit_all(drafting)
    assert oracle.num_proposed > 0
    for stream, plain in zip(streams, expected, strict=True):
        assert stream.tokens == plain.tokens
        assert stream.flags == plain.flags
        assert stream.reason == plain.reason
        assert [entry.logprob for entry in stream.logprobs] == pytest.approx(
            [entry.logprob for entry in plain.logprobs], abs=1e-4
        )
    assert drafting.engine.pocketllm_stats().num_generated_tokens == sum(len(stream.tokens) for stream in expected)


@pytest.mark.parametrize("oracle", [0.0, 1.0], indirect=True)
def test_right_proposals_save_steps_and_wrong_ones_do_not(driver: Driver, drafting: Driver, oracle: Oracle) -> None:
    prompt = random_ids(10, seed=4)
    plain = driver.run(prompt, max_tokens=41)
    oracle.answers = {1: plain.tokens}
    assert drafting.run(prompt, max_tokens=41).tokens == plain.tokens
    # One step for the prompt gives a token; each further step the newest token's and those proposed.
    wrong_every_time = oracle.num_proposed > 40
    assert drafting.engine.pocketllm_stats().num_steps == (41 if wrong_every_time else 1 + 40 // (1 + NUM_PROPOSED))


@pytest.mark.parametrize("oracle", [0.5], indirect=True)
def test_proposals_take_no_blocks_from_others(driver: Driver, drafting: Driver, oracle: Oracle) -> None:
    """Nine sequences in a cache for few: they are preempted, and answer as they would alone."""
    prompts = [random_ids(20, seed=seed) for seed in range(9)]
    expected = [driver.run(prompt, max_tokens=60) for prompt in prompts]
    oracle.answers = {handle + 1: stream.tokens for handle, stream in enumerate(expected)}
    streams = [drafting.submit(prompt, max_tokens=60)[0] for prompt in prompts]
    drafting.wait()
    assert [stream.tokens for stream in streams] == [stream.tokens for stream in expected]
    stats = drafting.engine.pocketllm_stats()
    assert stats.num_preemptions > 0
    assert stats.num_free_blocks == stats.num_blocks


@pytest.mark.parametrize("oracle", [0.0], indirect=True)
def test_a_recurrent_state_takes_no_proposals(oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = write_tiny("qwen35", tmp_path)
    oracle.answers = {1: [1] * 20}
    monkeypatch.setattr(opening, "TorchEngine", partial(TorchEngine, drafter=oracle))
    with Driver.open(tiny.path, dtype="float32") as driver:
        stream = driver.run(random_ids(10, 1), max_tokens=12)
    assert stream.finish is not None
    assert "cannot take a rejected proposal back" in str(stream.finish.error)


@pytest.mark.parametrize("oracle", [0.0], indirect=True)
def test_the_deterministic_mode_takes_no_drafter(
    tiny: TinyLlama, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "TorchEngine", partial(TorchEngine, drafter=oracle))
    with pytest.raises(ValueError, match="a deterministic engine has no drafter"):
        Driver.open(tiny.path, options={"deterministic": True})
