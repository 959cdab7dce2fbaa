"""The first occurrence in the whole text wins, however the text arrives; no more is held than may begin a stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.text.stop_strings import StopStrings, find_first_stop

TEXTS = st.text(alphabet="ab<|é", max_size=24)
STOPS = st.lists(st.text(alphabet="ab<|é", max_size=5), max_size=4)


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool, StopStrings]:
    machine = StopStrings(stops)
    text = "".join(machine.feed(piece)[0] for piece in pieces)
    return text + machine.finish(), machine.matched, machine


def expected(stops: list[str], text: str) -> tuple[str, bool]:
    match = find_first_stop(text, stops)
    return (text, False) if match is None else (text[: match[0]], True)


@given(text=TEXTS, stops=STOPS, places=st.lists(st.integers(0, 24), max_size=5))
def test_agrees_with_the_reference_at_any_cut(text: str, stops: list[str], places: list[int]) -> None:
    ends = sorted({place % (len(text) + 1) for place in places})
    pieces = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    answer, matched, machine = run(stops, pieces)
    assert (answer, matched) == expected(stops, text)
    assert machine.match == find_first_stop(text, stops)


@pytest.mark.parametrize(
    "stops, text",
    [
        (["USER:"], "Hello\nUSER: hi"),
        (["###", "\n\n"], "one\n\ntwo###"),
        (["abcd", "bc"], "xabcd"),  # the longer one began first
        (["abcd", "bc"], "xabce"),
        (["abcd", "bc"], "xabc"),
        (["aab"], "aaaab"),
        (["ab", "abc"], "abc"),
        (["", "x"], "yx"),
    ],
)
def test_stop_strings_are_found_across_every_cut(stops: list[str], text: str) -> None:
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            answer, matched, _ = run(stops, [text[:first], text[first:second], text[second:]])
            assert (answer, matched) == expected(stops, text)


@given(text=TEXTS, stops=STOPS)
def test_holds_exactly_what_can_begin_a_stop(text: str, stops: list[str]) -> None:
    machine = StopStrings(stops)
    returned = ""
    for end, char in enumerate(text, start=1):
        new, matched = machine.feed(char)
        returned += new
        if matched:
            break
        held = (
            max(n for n in range(end + 1) for stop in stops if text[end - n : end] == stop[:n] and n < len(stop))
            if any(stops)
            else 0
        )
        if machine.match is None:
            assert machine.num_held == held
        assert returned == text[: end - machine.num_held]


def test_everything_after_a_match_is_ignored() -> None:
    machine = StopStrings(["end"])
    assert machine.feed("the end of it") == ("the ", True)
    assert machine.feed("more") == ("", True)
    assert machine.finish() == ""
    assert machine.match == (4, 7)
    assert machine.num_held == 0


def test_waits_for_a_longer_sequence_that_began_earlier() -> None:
    machine = StopStrings(["abcd", "bc"])
    assert machine.feed("xabc") == ("x", False)
    assert machine.match == (2, 4)
    assert machine.feed("e") == ("a", True)


def test_no_stops_hold_nothing() -> None:
    machine = StopStrings(["", ""])
    assert machine.feed("anything") == ("anything", False)
    assert (machine.finish(), machine.matched, machine.num_held) == ("", False, 0)


def test_work_is_linear_in_a_hostile_text() -> None:
    class CountingDict(dict[str, int]):
        num_gets = 0

        def __contains__(self, key: object) -> bool:
            CountingDict.num_gets += 1
            return super().__contains__(key)

    machine = StopStrings(["a" * 1000 + "b"])
    machine._children = [CountingDict(children) for children in machine._children]
    answer = "".join(machine.feed("a")[0] for _ in range(20_000)) + machine.finish()
    assert answer == "a" * 20_000
    assert CountingDict.num_gets < 3 * 20_000
