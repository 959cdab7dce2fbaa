"""Masks, ends and roll-backs."""

from __future__ import annotations

import ctypes
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketllm.checkpoint import Tokenizer
from pocketllm.errors import EngineError
from pocketllm.structured import TokenMatcher, compile_constraint, grammars
from pocketllm.structured.matcher import allow_all, write_bits
from pocketllm.types import Constraint
from tests.structured.sampling import allowed_ids, byte_ids
from tests.structured.vocabularies import byte_level

SHARED = byte_level()
SCHEMA = json.dumps(
    {"type": "object", "properties": {"a": {"type": ["integer", "string"]}, "b": {"type": "array"}}, "required": ["a"]}
)


def matcher(kind: str, text: str, tokenizer: Tokenizer, *stop_ids: int) -> TokenMatcher:
    return compile_constraint(Constraint(kind, text), tokenizer).matcher(stop_ids or [tokenizer.eos_token_id or 0])


def mask(of: TokenMatcher) -> list[int]:
    return allowed_ids(of, SHARED.vocab_size)


def test_stop_ids_are_allowed_where_the_text_may_end(tokenizer: Tokenizer) -> None:
    stop = tokenizer.eos_token_id or 0
    following = matcher("regex", "a+", tokenizer)
    assert mask(following) == [ord("a")]
    assert not following.allows_eos
    assert not following.accept(stop)
    assert following.accept(ord("a"))
    assert following.allows_eos
    assert not following.is_done
    assert mask(following) == [ord("a"), stop]
    assert following.accept(stop)
    assert following.is_done
    assert not following.allows_eos
    assert not following.accept(ord("a"))


def test_at_the_end_only_stop_ids(tokenizer: Tokenizer) -> None:
    other = tokenizer.token_id("<|other|>")
    assert other is not None
    following = matcher("choice", '["ab"]', tokenizer, other)
    assert following.accept(ord("a"))
    assert following.accept(ord("b"))
    assert following.is_done
    # The vocabulary's own end token is not among the request's stop ids.
    assert mask(following) == [other]
    assert not following.accept(tokenizer.eos_token_id or 0)


def test_an_ordinary_stop_id_ends_only_what_is_complete(tokenizer: Tokenizer) -> None:
    following = matcher("regex", "(ab)+", tokenizer, ord("a"))
    assert not following.accept(ord("a"))
    with pytest.raises(EngineError, match="No token"):
        mask(following)


def test_without_stop_ids_a_finished_text_is_done(tokenizer: Tokenizer) -> None:
    following = compile_constraint(Constraint("choice", '["a"]'), tokenizer).matcher([])
    assert following.accept(ord("a"))
    assert following.is_done
    assert mask(following) == []


def test_what_is_not_allowed_changes_nothing(tokenizer: Tokenizer) -> None:
    following = matcher("choice", '["ab", "ac"]', tokenizer)
    assert following.accept(ord("a"))
    for wrong in (ord("x"), -1, tokenizer.vocab_size, 10**6, tokenizer.token_id("<|other|>") or 0):
        assert not following.accept(wrong)
    assert mask(following) == [ord("b"), ord("c")]


def outgrow(following: TokenMatcher, randomness: random.Random, num_tokens: int) -> int:
    """Tokens followed, of at most ``num_tokens``, before an error."""
    for number in range(num_tokens):
        try:
            ids = mask(following)
        except EngineError as error:
            assert "cannot be followed" in error.message  # noqa: PT017 - the caller wants to know where
            return number
        assert SHARED.eos_token_id not in ids
        assert following.accept(randomness.choice([token for token in ids if token != ord("c")]))
    return num_tokens


def test_a_constraint_that_outgrows_its_limits_is_an_error_and_no_end(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(grammars.MATCHER_LIMITS, "max_lexer_states", 2_000)
    randomness = random.Random(1)
    compiled = compile_constraint(Constraint("regex", "(a|b)*a(a|b){15}c"), tokenizer)
    first = compiled.matcher([SHARED.eos_token_id or 0])
    assert 100 < outgrow(first, randomness, 5_000) < 5_000
    # What one sequence used up is not taken from the next, nor from those that go on beside it.
    beside = [compiled.matcher([SHARED.eos_token_id or 0]) for _ in range(20)]
    for _ in range(3):
        assert [outgrow(each, randomness, 60) for each in beside] == [60] * 20
    beside[0].rollback(100)
    assert outgrow(beside[0], randomness, 100) == 100


@pytest.mark.parametrize("num_extra_words", [-2, 0, 3])
def test_rows_of_another_width_get_what_fits(num_extra_words: int, tokenizer: Tokenizer) -> None:
    num_words = -(-tokenizer.vocab_size // 32) + num_extra_words
    row = (ctypes.c_uint32 * num_words)(*[0xFFFFFFFF] * num_words)
    matcher("regex", "[ab]", tokenizer).fill_mask(ctypes.addressof(row), num_words)
    bits = int.from_bytes(bytes(row), "little")
    assert bits == (1 << ord("a")) | (1 << ord("b"))


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 100])
def test_single_bits_and_whole_rows_are_written(vocab_size: int) -> None:
    row = (ctypes.c_uint32 * 4)(*[0xAAAAAAAA] * 4)
    address = ctypes.addressof(row)
    allow_all(address, 4, vocab_size)
    assert int.from_bytes(bytes(row), "little") == (1 << vocab_size) - 1
    write_bits(address, 4, [0, 127, 128, -1], allowed=False)
    write_bits(address, 4, [127], allowed=True)
    assert int.from_bytes(bytes(row), "little") == ((1 << vocab_size) - 2) | (1 << 127)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), num_tokens=st.integers(1, 25), num_back=st.integers(0, 25))
def test_rolling_back_leads_to_the_same_masks(seed: int, num_tokens: int, num_back: int) -> None:
    randomness = random.Random(seed)
    following, masks = matcher("json_schema", SCHEMA, SHARED), []
    for _ in range(num_tokens):
        if following.is_done:
            break
        masks.append(mask(following))
        assert following.accept(randomness.choice(masks[-1]))
    num_back = min(num_back, len(masks))
    following.rollback(num_back)
    if num_back:
        assert mask(following) == masks[len(masks) - num_back]
        assert not following.is_done or len(masks[len(masks) - num_back]) == 1
    with pytest.raises(ValueError, match="cannot take back"):
        following.rollback(len(masks) - num_back + 1)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), num_tokens=st.integers(0, 15))
def test_masks_and_accept_agree(seed: int, num_tokens: int) -> None:
    randomness = random.Random(seed)
    following = matcher("json_schema", SCHEMA, SHARED)
    for _ in range(num_tokens):
        if following.is_done:
            return
        assert following.accept(randomness.choice(mask(following)))
    if following.is_done:
        return
    allowed = set(mask(following))
    for token in randomness.sample(range(SHARED.vocab_size), 60):
        accepted = following.accept(token)
        assert accepted == (token in allowed)
        following.rollback(int(accepted))


def test_a_space_at_the_start_for_sentence_piece(spm_tokenizer: Tokenizer) -> None:
    stop = spm_tokenizer.eos_token_id or 0
    following = matcher("json_object", "", spm_tokenizer, stop)
    ids = allowed_ids(following, spm_tokenizer.vocab_size)
    pieces = {spm_tokenizer.token_bytes(token) for token in ids}
    assert pieces == {b"{", b'{"'}
    assert len(ids) == len(pieces), "a byte token repeats an ordinary one"
    for token in [*map(spm_tokenizer.token_id, ("{", "}")), stop]:
        assert token is not None
        assert following.accept(token)
    assert following.is_done


def test_bytes_of_a_character_without_a_token(spm_tokenizer: Tokenizer) -> None:
    following = matcher("regex", "é", spm_tokenizer, 2)
    for byte in "é".encode():
        assert allowed_ids(following, spm_tokenizer.vocab_size) == [3 + byte]
        assert following.accept(3 + byte)
    assert following.is_done


def test_longer_tokens_are_offered(tokenizer: Tokenizer) -> None:
    following = matcher("regex", "hello world|help", tokenizer)
    pieces = {tokenizer.token_bytes(token) for token in mask(following)}
    assert {b"h", b"hello"} <= pieces
    assert all(following.accept(token) for token in byte_ids(tokenizer, "hel"))
