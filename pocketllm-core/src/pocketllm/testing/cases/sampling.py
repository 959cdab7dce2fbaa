"""Greedy answers, seeds, and the four values that shape a draw."""

from __future__ import annotations

from typing import Any

from pocketllm.testing.case import case
from pocketllm.testing.refusals import refuses
from pocketllm.testing.rig import Rig
from pocketllm.testing.rules import broken

HOT = 2.0
"""A temperature at which the drawn tokens of any model differ from draw to draw."""
NUM_TOKENS = 16


@case("D1")
def greedy_is_reproducible(rig: Rig) -> None:
    """The same greedy request three times, with other requests in between."""
    if not rig.deterministic:
        return  # the engine fixes a temperature above 0: no request is greedy
    answers = []
    for index in range(3):
        answers.append(rig.ask(max_tokens=NUM_TOKENS, seeds=(index,)))
        rig.ask(rig.prompt(index + 1), max_tokens=2)
    if any(answer != answers[0] for answer in answers):
        raise broken("D1", f"one greedy request gave different answers: {answers}")


@case("D2")
def a_seed_reproduces_its_tokens(rig: Rig) -> None:
    """Sampled at a high temperature, alone: the same seed gives the same tokens."""
    if not rig.capabilities.per_request_sampling:
        return  # F1 covers it: another seed is refused
    for seed in (0, 1, 2**62):
        first, second = (_hot(rig, seed) for _ in range(2))
        if first != second:
            raise broken("D2", f"seed {seed} gave {first} and then {second}")


@case("D2")
def choices_have_their_own_seeds(rig: Rig) -> None:
    """Each choice of a request draws what its seed draws in a request of its own."""
    if not rig.capabilities.per_request_sampling:
        return
    sent = rig.run(rig.request(max_tokens=NUM_TOKENS, seeds=(11, 12), temperature=HOT))
    for index, seed in enumerate((11, 12)):
        own = _hot(rig, seed)
        first_same = sent.tokens(index)[:1] == own[:1]
        if rig.capabilities.batch_invariant and sent.tokens(index) != own:
            raise broken("D2", f"choice with seed {seed}: {sent.tokens(index)}, alone: {own}")
        if not first_same:
            raise broken("D2", f"choice with seed {seed} begins with {sent.tokens(index)[:1]}, alone with {own[:1]}")


@case("D3")
def other_seeds_differ(rig: Rig) -> None:
    """Four seeds do not give one answer."""
    if rig.capabilities.per_request_sampling:
        answers = {tuple(_hot(rig, seed)) for seed in range(4)}
        if len(answers) < 2:
            raise broken("D3", f"four seeds at temperature {HOT} gave one answer: {answers.pop()}")


@case("F1")
def temperature_acts_or_is_refused(rig: Rig) -> None:
    """Declared: at a high temperature the answer leaves the greedy one. Undeclared: another value is refused."""
    if not rig.capabilities.per_request_sampling:
        refuses(rig, "F1", "temperature", rig.capabilities.temperature + 0.5)
        return
    greedy = rig.ask(max_tokens=NUM_TOKENS)
    if all(_hot(rig, seed) == greedy for seed in range(4)):
        raise broken("F1", f"temperature {HOT} gives the greedy answer for every seed")


@case("F1")
def top_p_acts_or_is_refused(rig: Rig) -> None:
    """Declared: a tiny nucleus holds the best token alone, so a hot draw is the greedy answer."""
    if not rig.capabilities.per_request_sampling:
        refuses(rig, "F1", "top_p", 0.5 if rig.capabilities.top_p != 0.5 else 0.25)
        return
    _equals_greedy(rig, "F1", top_p=1e-6)


@case("F1")
def seed_acts_or_is_refused(rig: Rig) -> None:
    """Undeclared: another seed is refused. Declared: D2 and D3 judge it."""
    if not rig.capabilities.per_request_sampling:
        refuses(rig, "F1", "seed", rig.capabilities.seed + 1)


@case("F1")
def the_fixed_values_are_accepted(rig: Rig) -> None:
    """A request that repeats the values in force is served."""
    fixed = rig.capabilities
    if not fixed.per_request_sampling:
        rig.ask(max_tokens=2, temperature=fixed.temperature, top_p=fixed.top_p, seed=fixed.seed)


@case("F2")
def top_k_acts_or_is_refused(rig: Rig) -> None:
    """Declared: top_k = 1 leaves the best token alone. Undeclared: another value is refused."""
    if not rig.capabilities.per_request_top_k:
        refuses(rig, "F2", "top_k", rig.capabilities.top_k + 1)
        return
    _equals_greedy(rig, "F2", top_k=1)


@case("F3")
def min_p_acts_or_is_refused(rig: Rig) -> None:
    """Declared: min_p = 1 leaves the best token alone."""
    if not rig.capabilities.supports_min_p:
        refuses(rig, "F3", "min_p", 0.5)
        return
    _equals_greedy(rig, "F3", min_p=1.0)


def _hot(rig: Rig, seed: int, **values: Any) -> list[int]:
    return rig.ask(max_tokens=NUM_TOKENS, seeds=(seed,), temperature=HOT, **values)


def _equals_greedy(rig: Rig, rule: str, **values: Any) -> None:
    """A draw that is cut down to the best token is the greedy answer, whatever the temperature and the seed."""
    if not rig.capabilities.per_request_sampling:
        rig.ask(max_tokens=NUM_TOKENS, **values)  # the temperature is fixed: only that it is served can be judged
        return
    greedy = rig.ask(max_tokens=NUM_TOKENS)
    for seed in range(3):
        cut = _hot(rig, seed, **values)
        if cut != greedy:
            raise broken(rule, f"{values} at temperature {HOT} gave {cut} instead of the greedy {greedy}")
