"""Random numbers that depend on a sequence's seed and the position of a token, and on nothing else.

A counter-based generator: no state to keep, so a preempted sequence, another batch or another device draws the same
number for the same token. The mixing function is SplitMix64's finaliser (Steele, Lea and Flood, 2014).
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def uniform(seed: int, counter: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    key = _mix((seed & _MASK) + _GOLDEN)
    word = _mix(key ^ _mix((counter + 1) * _GOLDEN))
    return (word >> 11) * 2.0**-53


def _mix(word: int) -> int:
    word &= _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)
