"""One choice: any cut of the same tokens gives the same text, the same end and the same counts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.errors import UnsupportedFeatureError
from pocketllm.text.choice import ChoiceText, TextDelta
from pocketllm.text.stop_strings import find_first_stop
from tests.text.test_reasoning import reference as split_reference
from tests.text.vocabularies import MIXED_PIECES, ByteVocabulary, cut

PIECES = [
    *("<think>", "</think>", "\n", "a", "b", "ab", "<", "think>", "</", "é", "STOP", "ST", "OP", "x</thi", "nk>\n"),
]
VOCABULARY = ByteVocabulary(
    [*(piece.encode() for piece in PIECES), b"\xf0\x9f", b"\x98\x8a", b"<eos>"], special=[len(PIECES) + 2]
)
IDS = st.lists(st.integers(0, len(PIECES) + 2), max_size=16)
STOPS = st.lists(st.sampled_from(["STOP", "a", "ab", "b\n", "OP", "<", "😊", "TO", "bab", "Pa"]), max_size=3)
MODES = st.sampled_from(["none", "open", "auto"])


def add_up(deltas: Sequence[TextDelta]) -> TextDelta:
    return TextDelta(
        "".join(delta.content for delta in deltas),
        "".join(delta.reasoning for delta in deltas),
        sum(delta.num_tokens_used for delta in deltas),
        deltas[-1].stopped,
    )


def run(choice: ChoiceText, pieces: Sequence[Sequence[int]]) -> TextDelta:
    deltas = []
    for piece in pieces:
        deltas.append(choice.feed(piece))
        assert deltas[-1].num_tokens_used >= 0
        assert sum(delta.num_tokens_used for delta in deltas) == choice.offsets.num_used
    return add_up([*deltas, choice.finish()])


@given(ids=IDS, stops=STOPS, mode=MODES, places=st.lists(st.integers(0, 100), max_size=6))
def test_any_cut_gives_the_same_choice(ids: list[int], stops: list[str], mode: str, places: list[int]) -> None:
    at_once = ChoiceText(VOCABULARY, stop=stops, reasoning_mode=mode)
    whole = run(at_once, [ids])
    in_pieces = ChoiceText(VOCABULARY, stop=stops, reasoning_mode=mode)
    assert run(in_pieces, cut(ids, places)) == whole
    assert in_pieces.offsets.num_in_text == at_once.offsets.num_in_text


@given(ids=IDS, mode=MODES, places=st.lists(st.integers(0, 100), max_size=6))
def test_the_short_way_of_plain_text_gives_what_the_whole_pipeline_gives(
    ids: list[int], mode: str, places: list[int]
) -> None:
    """A stop string that the vocabulary cannot spell keeps a choice on the long way and changes nothing."""
    short = ChoiceText(VOCABULARY, reasoning_mode=mode)
    long = ChoiceText(VOCABULARY, stop=["\0 never"], reasoning_mode=mode)
    for piece in cut(ids, places):
        assert short.feed(piece) == long.feed(piece)
        assert short.offsets.num_in_text == long.offsets.num_in_text
        assert short.offsets.num_reasoning == long.offsets.num_reasoning
        assert short.offsets.num_fed == long.offsets.num_fed
    assert short.finish() == long.finish()
    assert short.offsets.num_in_text == long.offsets.num_in_text
    assert short.offsets.num_used == long.offsets.num_used


@given(ids=IDS, stops=STOPS, mode=MODES)
def test_agrees_with_the_parts_run_on_the_whole(ids: list[int], stops: list[str], mode: str) -> None:
    text = VOCABULARY.decode(ids)
    reasoning, content = split_reference(mode, text)
    match = find_first_stop(content, stops)
    choice = ChoiceText(VOCABULARY, stop=stops, reasoning_mode=mode)
    total = run(choice, [[token_id] for token_id in ids])
    assert total.reasoning == reasoning
    assert total.stopped == (match is not None)
    assert total.content == (content if match is None else content[: match[0]])
    if match is None:
        assert total.num_tokens_used == choice.offsets.num_in_text == len(ids)
        return
    content_start = len(text) - len(content)
    # The shortest prefix whose certain text holds the whole match; one that ends inside a character shows it later.
    completing = (
        next(
            n
            for n in range(len(ids) + 1)
            if len(VOCABULARY.decode(ids[:n]).rstrip("\ufffd")) >= content_start + match[1]
        )
        if "\ufffd" not in text
        else None
    )
    if completing is not None:
        assert total.num_tokens_used == completing
    assert choice.offsets.num_in_text <= total.num_tokens_used
    covered = VOCABULARY.decode(ids[: choice.offsets.num_in_text])
    assert len(covered) >= content_start + match[0]


def test_the_token_that_completes_the_stop_is_the_last_counted() -> None:
    choice = ChoiceText(ByteVocabulary(MIXED_PIECES), stop=["USER:"])
    assert choice.feed(b"Hi US") == TextDelta("Hi ", "", 5, False)
    assert choice.offsets.num_in_text == 3
    assert choice.feed(b"ER: more") == TextDelta("", "", 3, True)
    assert choice.stopped
    assert choice.offsets.num_in_text == 3
    assert choice.feed(b"ignored") == TextDelta("", "", 0, True)
    assert choice.finish() == TextDelta("", "", 0, True)
    assert (choice.offsets.num_used, choice.offsets.num_in_text) == (8, 3)


def test_a_token_cut_by_the_stop_is_in_the_text() -> None:
    vocabulary = ByteVocabulary([b"one", b" two.\n", b"three"])
    choice = ChoiceText(vocabulary, stop=["\n"])
    assert choice.feed([0, 1, 2]) == TextDelta("one two.", "", 2, True)
    assert choice.offsets.num_in_text == 2


def test_held_text_is_flushed_at_the_end() -> None:
    choice = ChoiceText(ByteVocabulary(MIXED_PIECES), stop=["USER:"])
    assert choice.feed(b"a US\xe2\x82") == TextDelta("a ", "", 6, False)
    assert choice.offsets.num_in_text == 2
    assert choice.finish() == TextDelta("US\ufffd", "", 0, False)
    assert choice.offsets.num_in_text == 6
    assert choice.finish() == TextDelta()


def test_tokens_wait_while_a_longer_stop_may_win() -> None:
    choice = ChoiceText(ByteVocabulary(MIXED_PIECES), stop=["abcde", "bc"])
    assert choice.feed(b"abc").num_tokens_used == 3
    assert choice.feed(b"d") == TextDelta("", "", 0, False)
    assert choice.feed(b"x") == TextDelta("a", "", 0, True)
    assert choice.offsets.num_used == 3


def test_a_stop_string_may_be_found_at_the_end() -> None:
    choice = ChoiceText(ByteVocabulary(MIXED_PIECES), stop=["abcde", "bc"])
    assert choice.feed(b"abcd") == TextDelta("", "", 3, False)
    assert choice.finish() == TextDelta("a", "", 0, True)


def test_stop_does_not_look_inside_reasoning() -> None:
    choice = ChoiceText(ByteVocabulary(MIXED_PIECES), stop=["x"], reasoning_mode="open")
    assert choice.feed(b"a x b\n</think>\n\nc x d") == TextDelta("c ", "a x b", 19, True)


def test_token_that_arrives_before_the_splitter_decides_is_counted_by_place() -> None:
    choice = ChoiceText(ByteVocabulary(MIXED_PIECES), stop=["<"], reasoning_mode="auto")
    assert choice.feed(b"<thi") == TextDelta("", "", 1, False)
    assert choice.feed(b"s") == TextDelta("", "", 0, True)
    assert choice.offsets.num_used == 1


class Upper:
    """Holds back the last character, to show the flush."""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> str:
        assert text
        shown, self.held = (self.held + text)[:-1], text[-1]
        return shown.upper()

    def finish(self) -> str:
        return f"{self.held}."


class Doubled:
    def feed(self, text: str) -> str:
        return text * 2 if len(text) == 1 else "".join(char * 2 for char in text)

    def finish(self) -> str:
        return "!"


@given(data=st.text(alphabet="ab|x", max_size=12), places=st.lists(st.integers(0, 20), max_size=4))
def test_stages_see_the_answer_in_order_and_are_flushed(data: str, places: list[int]) -> None:
    choice = ChoiceText(ByteVocabulary(MIXED_PIECES), stop=["x"], stages=[Upper(), Doubled()])
    total = run(choice, cut(data.encode(), places))
    kept = data.partition("x")[0]
    shown = kept[:-1].upper() + kept[-1:] + "."
    assert total.content == "".join(char * 2 for char in shown) + "!"


def test_stages_do_not_see_reasoning_and_end_with_the_stop() -> None:
    choice = ChoiceText(ByteVocabulary(MIXED_PIECES), stop=["x"], stages=[Upper()], reasoning_mode="open")
    assert choice.feed(b"abc</think>def x") == TextDelta("DEF .", "abc", 16, True)
    assert choice.finish().content == ""


def test_what_a_stage_raises_passes_through() -> None:
    class Broken:
        def feed(self, text: str) -> str:
            raise ZeroDivisionError("from the stage")

        def finish(self) -> str:
            return ""

    choice = ChoiceText(ByteVocabulary(MIXED_PIECES), stages=[Broken()])
    with pytest.raises(ZeroDivisionError, match="from the stage"):
        choice.feed(b"a")


@given(text=st.text(alphabet="ab<|S", max_size=20), places=st.lists(st.integers(0, 20), max_size=4), stops=STOPS)
def test_text_backends_follow_the_same_rules(text: str, places: list[int], stops: list[str]) -> None:
    by_tokens = run(ChoiceText(ByteVocabulary(MIXED_PIECES), stop=stops), [text.encode()])
    choice = ChoiceText(None, stop=stops)
    deltas = [choice.feed_text(bytes(piece).decode(), num_tokens=len(piece)) for piece in cut(text.encode(), places)]
    total = add_up([*deltas, choice.finish()])
    assert (total.content, total.stopped) == (by_tokens.content, by_tokens.stopped)


def test_reasoning_of_a_backend_is_forwarded_and_ends_the_split() -> None:
    choice = ChoiceText(None, stop=["x"], reasoning_mode="open")
    assert choice.feed_text(reasoning="\nx y\n", num_tokens=2) == TextDelta("", "\nx y\n", 2, False)
    assert choice.feed_text("answer</think>", num_tokens=1) == TextDelta("answer</think>", "", 1, False)
    assert choice.feed_text("x", num_tokens=1) == TextDelta("", "", 1, True)


def test_tokens_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="bring text"):
        ChoiceText(None).feed([1])


def test_counts_stay_exact_over_long_answers() -> None:
    choice = ChoiceText(ByteVocabulary(MIXED_PIECES), stop=["STOP"])
    for _ in range(3000):
        assert choice.feed(b"ab").num_tokens_used == 2
    assert choice.feed(b"STOP!").num_tokens_used == 4
    assert (choice.offsets.num_used, choice.offsets.num_in_text) == (6004, 6000)


def test_repr_shows_no_text() -> None:
    assert "secret" not in repr(TextDelta("secret", "secret", 1, False))
