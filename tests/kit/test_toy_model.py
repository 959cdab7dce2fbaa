"""The toy model's distribution is a real one, and every sampling value acts on it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.engine.iterator_engine import Emission
from pocketllm.sampling_params import SamplingParams
from pocketllm.testing.toy_model import NUM_CANDIDATES, ToySequence, log_normalizer, ranked, toy_logits
from pocketllm.types import Choice, GenerationRequest

VOCAB = 300
SCRIPT = [50, 51, 52, 50, 50, 53, 299, 54]


def play(length: int = len(SCRIPT), seed: int = 0, stop_ids: tuple[int, ...] = (), **params: Any) -> list[int]:
    request = GenerationRequest(
        prompt_tokens=(9, 50, 8),
        choices=(Choice(1, seed),),
        stop_token_ids=stop_ids,
        sampling_params=SamplingParams(**params),
    )
    items = ToySequence(request, request.sampling_params, VOCAB).play(SCRIPT, go_on=True)
    chosen = [item.token_id if isinstance(item, Emission) else item for item in itertools.islice(items, length)]
    return [token for token in chosen if token is not None]


@given(context=st.lists(st.integers(0, VOCAB - 1), max_size=8), favourite=st.integers(0, VOCAB - 1))
def test_the_distribution_sums_to_one_and_the_favourite_leads(context: list[int], favourite: int) -> None:
    logits = toy_logits(context, favourite, VOCAB)
    total = log_normalizer(logits, VOCAB)
    assert math.fsum(math.exp(logit - total) for logit in logits.values()) == pytest.approx(1.0, abs=1e-9)
    assert ranked(logits)[0][0] == favourite
    assert all(0 <= token < VOCAB for token in logits)
    assert len(logits) <= NUM_CANDIDATES + 1
    assert logits == toy_logits(context, favourite, VOCAB)


def test_greedy_plays_the_script() -> None:
    assert play() == SCRIPT
    assert play(12) == SCRIPT + [54] * 4
    assert play(min_tokens=1) == SCRIPT
    assert play(temperature=0.0, seed=5) == SCRIPT


def test_seeds_reproduce_and_differ() -> None:
    assert play(temperature=2.0, seed=3) == play(temperature=2.0, seed=3)
    assert len({tuple(play(temperature=2.0, seed=seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_cutting_to_the_best_is_greedy(cut: dict[str, Any]) -> None:
    assert play(temperature=5.0, **cut) == SCRIPT


def test_top_k_keeps_k() -> None:
    drawn = {play(1, seed=seed, temperature=50.0, top_k=2)[0] for seed in range(60)}
    assert len(drawn) == 2


def test_penalties_drive_repetitions_away() -> None:
    assert play(4, repetition_penalty=1.5)[0] == 50  # in the prompt, but its lead is larger than that
    assert play(1, repetition_penalty=10.0) != [50]
    assert play(5, frequency_penalty=2.0)[:4] == [50, 51, 52, 50]
    assert play(5, frequency_penalty=2.0)[4] != 50
    assert play(5, presence_penalty=-2.0) == SCRIPT[:5]


def test_bias_and_stop_ids_decide_what_may_be_drawn() -> None:
    assert play(3, logit_bias={7: 100.0}) == [7, 7, 7]
    assert 50 not in play(logit_bias={50: -100.0})
    held = play(4, stop_ids=(50, 52), min_tokens=3)
    assert not {50, 52} & set(held[:3])
    assert held[3] == 50


def test_log_probabilities_ignore_the_sampler() -> None:
    def entries(**params: Any) -> list[Emission]:
        request = GenerationRequest(
            prompt_tokens=(1, 2),
            choices=(Choice(1, 0),),
            sampling_params=SamplingParams(logprobs=True, top_logprobs=4, **params),
        )
        items = list(ToySequence(request, request.sampling_params, VOCAB).play(SCRIPT[:1], go_on=False))
        return [item for item in items if isinstance(item, Emission)]

    (plain,), (hot,) = entries(), entries(temperature=9.0, logit_bias={3: 40.0})
    assert plain.top == hot.top
    assert plain.logprob == plain.top[0][1]
    assert len(plain.top) == 4


def test_prompt_log_probabilities_depend_on_the_prefix_alone() -> None:
    def report(*prompt: int) -> list[float]:
        params = SamplingParams(prompt_logprobs=True)
        request = GenerationRequest(prompt_tokens=prompt, choices=(Choice(1, 0),), sampling_params=params)
        found = ToySequence(request, params, VOCAB).prompt_report()
        assert found is not None
        assert [entry.row for entry in found.logprobs] == list(range(1, len(prompt)))
        return [entry.logprob for entry in found.logprobs]

    assert report(1, 2, 3, 4, 5)[:2] == report(1, 2, 3)
