"""The counter-based generator: fixed by seed and counter, even, and without visible structure."""

from __future__ import annotations

import math

from pocketllm_torch.engine.random_numbers import uniform


def test_is_a_function_of_seed_and_counter() -> None:
    assert uniform(7, 3) == uniform(7, 3)
    assert len({uniform(seed, counter) for seed in range(50) for counter in range(50)}) == 2500


def test_any_64_bit_seed_gives_a_number_in_the_unit_interval() -> None:
    for seed in (0, -1, 2**63 - 1, -(2**63), 2**64 - 1):
        assert 0.0 <= uniform(seed, 0) < 1.0


def test_numbers_are_even_along_counters_and_along_seeds() -> None:
    for numbers in ([uniform(1, c) for c in range(20_000)], [uniform(s, 0) for s in range(20_000)]):
        bins = [0] * 100
        for number in numbers:
            bins[int(number * 100)] += 1
        chi_square = sum((count - 200) ** 2 / 200 for count in bins)
        # 99 degrees of freedom: beyond 5 standard deviations on either side would be a fault.
        assert abs(chi_square - 99) < 5 * math.sqrt(2 * 99)


def test_neighbouring_counters_and_seeds_do_not_correlate() -> None:
    for pairs in (
        [(uniform(3, c), uniform(3, c + 1)) for c in range(10_000)],
        [(uniform(s, 5), uniform(s + 1, 5)) for s in range(10_000)],
        [(uniform(s, 6), uniform(s + 1, 5)) for s in range(10_000)],
    ):
        correlation = sum((a - 0.5) * (b - 0.5) for a, b in pairs) / len(pairs) * 12
        assert abs(correlation) < 5 / math.sqrt(len(pairs))
