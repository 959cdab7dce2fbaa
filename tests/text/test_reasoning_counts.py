"""The tokens of the reasoning: those with a character in it, however they arrive."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.text.choice import ChoiceText
from tests.text.test_choice import MODES, PIECES, STOPS, VOCABULARY, run
from tests.text.test_reasoning import reference as split_reference
from tests.text.vocabularies import ByteVocabulary, cut

IDS = st.lists(st.integers(0, len(PIECES) - 1), max_size=20)
ANY_IDS = st.lists(st.integers(0, len(PIECES) + 2), max_size=16)


def reference(texts: list[str], mode: str) -> int:
    """Counts by looking for the reasoning in the whole text."""
    whole = "".join(texts)
    reasoning, _ = split_reference(mode, whole)
    if not reasoning:
        return 0
    stripped = whole.lstrip()
    start = len(whole) - len(stripped) + len("<think>") if stripped.startswith("<think>") else 0
    start = whole.index(reasoning, start)
    end = start + len(reasoning)
    edges = [0, *itertools.accumulate(len(text) for text in texts)]
    return sum(begin < end and stop > start for begin, stop in itertools.pairwise(edges))


@given(ids=IDS, mode=MODES)
def test_tokens_with_a_character_in_the_reasoning(ids: list[int], mode: str) -> None:
    choice = ChoiceText(VOCABULARY, reasoning_mode=mode)
    run(choice, [ids])
    assert choice.offsets.num_reasoning == reference([PIECES[token] for token in ids], mode)


@given(ids=ANY_IDS, stops=STOPS, mode=MODES, places=st.lists(st.integers(0, 100), max_size=6))
def test_any_cut_gives_the_same_count(ids: list[int], stops: list[str], mode: str, places: list[int]) -> None:
    at_once = ChoiceText(VOCABULARY, stop=stops, reasoning_mode=mode)
    run(at_once, [ids])
    for pieces in (cut(ids, places), [[token] for token in ids]):
        choice = ChoiceText(VOCABULARY, stop=stops, reasoning_mode=mode)
        run(choice, pieces)
        assert choice.offsets.num_reasoning == at_once.offsets.num_reasoning


@pytest.mark.parametrize(
    "mode, texts, count",
    [
        ("auto", ["<think>", "\n", "one", " two", "\n", "</think>", "\n\n", "three"], 2),
        ("auto", ["<think>\none", " two\n</think>\n\nthree", " four"], 2),
        ("auto", ["no", " tags"], 0),
        ("open", ["one", "\n", "two", "</th", "ink>", "three"], 3),
        ("open", ["one", " and", " cut", " off"], 4),
        ("none", ["<think>", "one", "</think>"], 0),
    ],
)
def test_reasoning_tokens_are_counted_in_every_cut(mode: str, texts: list[str], count: int) -> None:
    vocabulary = ByteVocabulary([text.encode() for text in texts])
    for pieces in ([list(range(len(texts)))], [[token] for token in range(len(texts))]):
        choice = ChoiceText(vocabulary, reasoning_mode=mode)
        run(choice, pieces)
        assert choice.offsets.num_reasoning == count


def test_a_long_text_counts_every_token_once() -> None:
    texts = [
        "<think>",
        *(f"w{number} " for number in range(500)),
        "</think>",
        *(f"a{number} " for number in range(500)),
    ]
    choice = ChoiceText(ByteVocabulary([text.encode() for text in texts]), reasoning_mode="auto")
    for token in range(len(texts)):
        choice.feed([token])
    choice.finish()
    assert choice.offsets.num_reasoning == 500
