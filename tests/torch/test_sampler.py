"""Sampling: statistics on small vocabularies, each rule against a plain reference, independence of rows."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Choice, GenerationRequest
from pocketllm_torch.engine.masks import TokenMatcher
from pocketllm_torch.engine.random_numbers import uniform
from pocketllm_torch.engine.sampler import Sampler, apply_penalties, pick
from pocketllm_torch.engine.sequence import Sequence
from tests.torch.test_masks import ListMatcher

CPU = torch.device("cpu")
VOCAB = 12


def sequence(
    sampler: Sampler,
    *,
    prompt: tuple[int, ...] = (1,),
    seed: int = 0,
    stop_ids: tuple[int, ...] = (),
    matcher: TokenMatcher | None = None,
    **params: Any,
) -> Sequence:
    request = GenerationRequest(
        prompt_tokens=prompt,
        sampling_params=SamplingParams(**{"max_tokens": 100, **params}),
        choices=(Choice(1, seed),),
        stop_token_ids=stop_ids,
    )
    (made,) = Sequence.from_request(request, 0, [sampler.start(request, matcher)])
    return made


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn((rows, VOCAB), generator=torch.Generator().manual_seed(seed)) * 2


def generate(sampler: Sampler, item: Sequence, logits: torch.Tensor, count: int) -> list[int]:
    """``count`` tokens, all from the same logits."""
    for _ in range(count):
        item.tokens += sampler.sample(logits, [item])
    return item.tokens[item.num_prompt_tokens :]


def test_greedy_takes_the_first_of_the_largest() -> None:
    sampler = Sampler(VOCAB, CPU)
    logits = torch.zeros((2, VOCAB))
    logits[1, 4] = logits[1, 9] = 1.0
    assert sampler.sample(logits, [sequence(sampler), sequence(sampler)]) == [0, 4]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_tempered_softmax(temperature: float) -> None:
    logits = random_logits(1)[0]
    params = SamplingParams(temperature=temperature)
    expected = torch.softmax(logits.double() / temperature, -1).tolist()
    draws = 6000
    counts = Counter(pick(logits, params, uniform(9, counter)) for counter in range(draws))
    chi_square = sum((counts[token] - draws * p) ** 2 / (draws * p) for token, p in enumerate(expected))
    freedom = VOCAB - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)


def allowed(logits: torch.Tensor, **params: Any) -> set[int]:
    """Which tokens are ever picked, over an even sweep of the unit interval."""
    sampling = SamplingParams(temperature=1.0, **params)
    return {pick(logits, sampling, number / 3000) for number in range(3000)}


def test_top_k_keeps_the_k_most_probable() -> None:
    logits = random_logits(1, seed=3)[0]
    order = logits.argsort(descending=True).tolist()
    for k in (1, 3, VOCAB, 100):
        assert allowed(logits, top_k=k) == set(order[:k])


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert allowed(logits, top_p=0.4) == {0}
    assert allowed(logits, top_p=0.6) == {0, 1}
    assert allowed(logits, top_p=0.81) == {0, 1, 2}
    assert allowed(logits, top_p=1.0) == {0, 1, 2, 3}
    assert allowed(logits, top_p=1e-9) == {0}


def test_top_p_works_on_what_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # Of the two left, the first has 4/7: more than 0.55, so it is alone.
    assert allowed(logits, top_k=2, top_p=0.55) == {0}
    assert allowed(logits, top_p=0.55) == {0, 1}


def test_min_p_is_relative_to_the_most_probable() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert allowed(logits, min_p=0.55) == {0, 1}
    assert allowed(logits, min_p=1.0) == {0}
    assert allowed(logits, min_p=0.0) == {0, 1, 2, 3}


def test_a_wide_nucleus_is_found_beyond_the_first_candidates() -> None:
    logits = torch.zeros(2000)
    picked = {pick(logits, SamplingParams(temperature=1.0, top_p=0.5), number / 4000) for number in range(4000)}
    assert len(picked) == 1000


def test_impossible_tokens_are_never_picked() -> None:
    logits = torch.tensor([float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")])
    sampling = SamplingParams(temperature=1.0)
    numbers = [0.0, 0.25, 0.5, 0.75, 1.0 - 2.0**-53]
    assert [pick(logits, sampling, number) for number in numbers] == [1, 1, 3, 3, 3]


def test_a_tiny_temperature_does_not_overflow() -> None:
    logits = torch.tensor([10.0, 10.1, -5.0])
    assert pick(logits, SamplingParams(temperature=2e-5), 0.5) == 1


def test_a_seed_fixes_the_tokens_and_another_changes_them() -> None:
    sampler = Sampler(VOCAB, CPU)
    logits = random_logits(1)

    def run(seed: int) -> list[int]:
        return generate(sampler, sequence(sampler, seed=seed, temperature=1.0), logits, 40)

    assert run(5) == run(5)
    assert len({tuple(run(seed)) for seed in range(20)}) == 20


def test_rows_do_not_depend_on_each_other() -> None:
    sampler = Sampler(VOCAB, CPU)
    logits = random_logits(5)
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8, "top_k": 5, "seed": 1},
        {"temperature": 1.5, "top_p": 0.9, "min_p": 0.05, "seed": 2},
        {"repetition_penalty": 1.5, "logit_bias": {3: 4.0}},
        {"temperature": 1.0, "frequency_penalty": 1.0, "presence_penalty": 0.5, "seed": 3},
    ]
    together = sampler.sample(logits, [sequence(sampler, **kind) for kind in kinds])
    alone = [sampler.sample(logits[row : row + 1], [sequence(sampler, **kind)])[0] for row, kind in enumerate(kinds)]
    assert together == alone


def test_the_raw_logits_are_left_unchanged() -> None:
    sampler = Sampler(VOCAB, CPU)
    logits = random_logits(1)
    before = logits.clone()
    sampler.sample(logits, [sequence(sampler, logit_bias={1: -100.0}, repetition_penalty=2.0, presence_penalty=1.0)])
    assert torch.equal(logits, before)


def test_penalties_equal_a_plain_reference() -> None:
    row = random_logits(1, seed=8)[0]
    prompt, answer = [1, 2, 2], [3, 3, 3, 2]
    params = SamplingParams(repetition_penalty=1.7, frequency_penalty=0.3, presence_penalty=-0.4)
    expected = row.tolist()
    for token in range(VOCAB):
        if token in prompt + answer:
            expected[token] = expected[token] / 1.7 if expected[token] > 0 else expected[token] * 1.7
        count = answer.count(token)
        expected[token] -= 0.3 * count + (-0.4 if count else 0.0)
    counts = torch.zeros(VOCAB, dtype=torch.int32)
    seen = torch.zeros(VOCAB, dtype=torch.bool)
    for token in answer:
        counts[token] += 1
    seen[prompt + answer] = True
    apply_penalties(row, counts, seen, params)
    torch.testing.assert_close(row, torch.tensor(expected))


def test_penalties_follow_what_was_generated() -> None:
    sampler = Sampler(VOCAB, CPU)
    logits = torch.arange(VOCAB).float()[None] / 10
    item = sequence(sampler, presence_penalty=2.0)
    # Each token, once taken, falls below all others; the prompt's does not.
    assert generate(sampler, item, logits, VOCAB) == list(range(VOCAB - 1, -1, -1))


def test_repetition_counts_the_prompt() -> None:
    sampler = Sampler(VOCAB, CPU)
    logits = torch.ones((1, VOCAB))
    item = sequence(sampler, prompt=(0, 1, 2), repetition_penalty=2.0)
    assert generate(sampler, item, logits, 2) == [3, 4]


def test_bias_forces_and_forbids() -> None:
    sampler = Sampler(VOCAB, CPU)
    logits = random_logits(1)
    assert sampler.sample(logits, [sequence(sampler, logit_bias={7: 100.0})]) == [7]
    best = int(logits[0].argmax())
    assert sampler.sample(logits, [sequence(sampler, logit_bias={best: -100.0})]) != [best]


def test_stop_ids_wait_for_min_tokens() -> None:
    sampler = Sampler(VOCAB, CPU)
    logits = torch.zeros((1, VOCAB))
    logits[0, 5] = 10.0
    logits[0, 6] = 9.0
    logits[0, 7] = 8.0
    item = sequence(sampler, stop_ids=(5, 6, VOCAB + 3), min_tokens=3)
    assert generate(sampler, item, logits, 5) == [7, 7, 7, 5, 5]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_matcher_decides_what_may_come(temperature: float) -> None:
    sampler = Sampler(VOCAB, CPU)
    matcher = ListMatcher({2, 3}, {9}, {0, 11})
    item = sequence(sampler, matcher=matcher, temperature=temperature, seed=4)
    tokens = generate(sampler, item, random_logits(1), 3)
    assert tokens[0] in (2, 3)
    assert tokens[1] == 9
    assert tokens[2] in (0, 11)
    assert matcher.accepted == tokens
