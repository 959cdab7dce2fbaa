"""A constraint on the answer alone leaves the reasoning free."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketllm.checkpoint import Tokenizer
from pocketllm.structured import AfterText, TokenMatcher, compile_constraint
from pocketllm.types import Constraint
from tests.structured.sampling import allowed_ids, walk
from tests.structured.vocabularies import byte_level

SHARED = byte_level()
END = SHARED.eos_token_id or 0


def token(surface: str) -> int:
    found = SHARED.token_id(surface)
    assert found is not None
    return found


def follow(opening: str = "", pattern: str = "[0-9]+") -> TokenMatcher:
    compiled = compile_constraint(Constraint("regex", pattern), SHARED)
    return compiled.matcher([END], after="</think>", opening=opening)


def feed(matcher: TokenMatcher, text: str) -> bool:
    return all(matcher.accept(byte) for byte in text.encode())


def test_everything_but_an_end_before_the_tag() -> None:
    matcher = follow()
    expected = sorted(set(range(SHARED.vocab_size)) - {END})
    assert allowed_ids(matcher, SHARED.vocab_size) == expected
    assert not matcher.accept(END)
    assert feed(matcher, "I think 12 </thin, no.")
    assert not matcher.allows_eos
    assert not matcher.is_done
    assert matcher.accept(token("<|other|>"))


@pytest.mark.parametrize("spelling", ["token", "bytes", "pieces"])
def test_the_constraint_begins_after_the_tag(spelling: str) -> None:
    matcher = follow()
    assert feed(matcher, "hm<")
    matcher.rollback(1)
    ids = {"token": [token("</think>")], "bytes": list(b"</think>"), "pieces": [token("</th"), *b"ink>"]}[spelling]
    for each in ids:
        assert matcher.accept(each)
    digits = [ord(digit) for digit in "0123456789"]
    ids = allowed_ids(matcher, SHARED.vocab_size)
    blank = [each for each in ids if not SHARED.token_bytes(each).strip()]
    assert set(digits) | {token("12")} == set(ids) - set(blank)
    assert token("ĊĊ") in blank
    assert matcher.accept(token("ĊĊ"))
    assert feed(matcher, "42")
    assert matcher.allows_eos
    assert not matcher.accept(ord("\n")), "white space belongs to the answer now"
    assert matcher.accept(END)
    assert matcher.is_done


def test_white_space_before_the_answer_is_bounded() -> None:
    matcher = follow()
    assert feed(matcher, "</think>\n\n\n\n")
    assert not matcher.accept(ord("\n"))
    assert feed(matcher, "1")


def test_a_token_across_the_border_is_not_allowed() -> None:
    tokenizer = byte_level()
    tag = "</thinka"  # ends inside the piece "ag"
    compiled = compile_constraint(Constraint("regex", "g?x"), tokenizer)
    matcher = compiled.matcher([END], after=tag)
    for byte in b"</think":
        assert matcher.accept(byte)
    piece = tokenizer.token_id("ag")
    assert piece is not None
    assert piece not in allowed_ids(matcher, tokenizer.vocab_size)
    assert not matcher.accept(piece)
    assert matcher.accept(ord("a"))
    assert matcher.accept(ord("g"))


def test_reasoning_may_still_begin_or_be_left_out() -> None:
    matcher = follow(opening="<think>")
    first = allowed_ids(matcher, SHARED.vocab_size)
    assert token("<think>") in first
    assert ord("1") in first
    assert ord("x") not in first
    assert matcher.accept(token("<think>"))
    assert feed(matcher, "free text</think>1")
    assert matcher.allows_eos
    without = follow(opening="<think>")
    assert without.accept(ord("1"))
    assert token("<think>") not in allowed_ids(without, SHARED.vocab_size)
    assert not without.accept(token("<think>"))


def test_the_constraint_s_own_tag_is_used() -> None:
    compiled = compile_constraint(Constraint("regex", "a"), SHARED)
    assert not isinstance(compiled.matcher([END]), AfterText)
    assert isinstance(compiled.matcher([END], after="</think>"), AfterText)


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="<>/thinka 1\n", max_size=30), answer=st.text(alphabet="0123", min_size=1, max_size=4))
def test_the_first_tag_ends_the_reasoning(text: str, answer: str) -> None:
    whole = text + "</think>" + answer
    thought, _, rest = whole.partition("</think>")
    matcher = follow(pattern=r"[^x]*")
    assert feed(matcher, thought + "</think>")
    assert feed(matcher, rest)
    assert matcher.allows_eos


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), num_tokens=st.integers(1, 30), num_back=st.integers(1, 30))
def test_rolling_back_restores_every_earlier_mask(seed: int, num_tokens: int, num_back: int) -> None:
    randomness = random.Random(seed)
    matcher, masks = follow(opening="<think>"), []
    likely = [token("<think>"), token("</think>"), token("</th"), *b"ink>", ord("1"), ord("\n")]
    for _ in range(num_tokens):
        if matcher.is_done:
            break
        masks.append(allowed_ids(matcher, SHARED.vocab_size))
        wanted = [each for each in likely if each in masks[-1]] or masks[-1]
        assert matcher.accept(randomness.choice(wanted))
    num_back = min(num_back, len(masks))
    matcher.rollback(num_back)
    assert allowed_ids(matcher, SHARED.vocab_size) == masks[len(masks) - num_back]


def test_a_schema_holds_after_the_reasoning(tokenizer: Tokenizer) -> None:
    compiled = compile_constraint(Constraint("json_object", ""), tokenizer)
    end = tokenizer.token_id("</think>")
    num_ended = 0
    for seed in range(10):
        matcher = compiled.matcher([END], after="</think>")
        assert matcher.accept(ord("x"))
        assert end is not None
        assert matcher.accept(end)
        text = walk(matcher, tokenizer, [END], random.Random(seed))
        if text is not None:
            num_ended += 1
            assert isinstance(json.loads(text), dict)
    assert num_ended
