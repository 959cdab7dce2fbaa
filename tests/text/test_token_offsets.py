"""Counts of tokens by their offsets, against looking at all of them each time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.text.token_offsets import TokenOffsets


@dataclass
class SlowOffsets:
    """The definition: every offset is kept and every count is made afresh."""

    starts: list[int] = field(default_factory=list)
    num_used: int = 0
    num_in_text: int = 0

    def advance(self, used_to: int | None, covered_to: int | None) -> int:
        before = self.num_used
        self.num_used = sum(used_to is None or start <= used_to for start in self.starts)
        self.num_in_text = sum(covered_to is None or start < covered_to for start in self.starts)
        return self.num_used - before


STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), max_size=40),  # how much text each new token has
        st.integers(0, 30),  # how far the counts move on, as far as there is text
        st.integers(0, 5),  # how much of that is held back
        st.booleans(),  # nothing is held
    ),
    max_size=30,
)


@given(STEPS)
def test_any_way_of_moving_on_counts_as_the_definition_says(
    steps: list[tuple[list[int], int, int, bool]],
) -> None:
    fast, slow = TokenOffsets(), SlowOffsets()
    text_end = used_to = covered_to = 0
    for lengths, move, held, all_certain in steps:
        for length in lengths:
            fast.add(text_end)
            slow.starts.append(text_end)
            text_end += length
        if all_certain:
            used_to, covered_to = text_end, text_end
            growth = fast.advance_all(text_end, is_last=False)
            expected = slow.advance(None, text_end)
        else:
            used_to = min(used_to + move, text_end)
            covered_to = max(covered_to, used_to - held)
            growth = fast.advance(used_to=used_to, covered_to=covered_to)
            expected = slow.advance(used_to, covered_to)
        assert (growth, fast.num_used, fast.num_in_text) == (expected, slow.num_used, slow.num_in_text)
        assert fast.num_fed == len(slow.starts)
    assert fast.advance_all(text_end, is_last=True) == slow.advance(None, None)
    assert fast.num_in_text == len(slow.starts)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.data())
def test_reasoning_is_made_of_the_tokens_that_reach_into_it(lengths: list[int], data: st.DataObject) -> None:
    text_end = sum(lengths)
    start = data.draw(st.integers(0, text_end - 1))
    ends = sorted(data.draw(st.sets(st.integers(start + 1, text_end), max_size=5)))
    offsets, begin, spans = TokenOffsets(), 0, []
    for length in lengths:
        offsets.add(begin)
        spans.append((begin, begin + length))
        begin += length
    for end in ends:
        offsets.count_reasoning(start, end, text_end)
        assert offsets.num_reasoning == sum(first < end and last > start for first, last in spans)


def test_tokens_of_one_piece_share_its_offset() -> None:
    offsets = TokenOffsets()
    offsets.add_together(0, 3)
    offsets.add(5)
    assert offsets.advance(used_to=0, covered_to=5) == 3
    assert (offsets.num_used, offsets.num_in_text, offsets.num_fed) == (3, 3, 4)


@pytest.mark.parametrize("num_tokens", [64, 65, 1000])
def test_dropped_offsets_leave_the_counts_as_they_are(num_tokens: int) -> None:
    offsets = TokenOffsets()
    for start in range(num_tokens):
        offsets.add(start)
        offsets.advance(used_to=start, covered_to=start)
    assert (offsets.num_used, offsets.num_in_text, offsets.num_fed) == (num_tokens, num_tokens - 1, num_tokens)
    assert len(offsets._starts) < 200  # counting stays linear
