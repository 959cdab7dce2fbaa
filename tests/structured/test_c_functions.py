"""The table of C functions over a matcher in Python."""

from __future__ import annotations

import ctypes
import threading

import pytest

from pocketllm.checkpoint import Tokenizer
from pocketllm.structured import compile_constraint
from pocketllm.structured.c_functions import MatcherFunctions, matcher_pointers, num_held_matchers
from pocketllm.structured.grammar_library import FUNCTIONS, grammar_functions
from pocketllm.types import Constraint
from tests.structured.sampling import allowed_ids


def mask(table: MatcherFunctions, matcher: int, vocab_size: int) -> list[int]:
    row = (ctypes.c_uint32 * -(-vocab_size // 32))()
    assert table.fill_mask(matcher, ctypes.addressof(row), len(row)) == 0
    return [token for token in range(vocab_size) if row[token // 32] >> token % 32 & 1]


def test_a_table_does_what_its_matcher_does(tokenizer: Tokenizer) -> None:
    stop = tokenizer.eos_token_id or 0
    compiled = compile_constraint(Constraint("regex", "a+b"), tokenizer)
    reference = compiled.matcher([stop])
    address, matcher = matcher_pointers(compiled.matcher([stop]))
    table = MatcherFunctions.from_address(address)
    for token in b"aaab":
        assert mask(table, matcher, tokenizer.vocab_size) == allowed_ids(reference, tokenizer.vocab_size)
        assert table.is_done(matcher) == 0
        assert table.accept(matcher, token) == 0
        assert reference.accept(token)
    assert table.is_done(matcher) == 1
    assert table.rollback(matcher, 2) == 0
    reference.rollback(2)
    assert mask(table, matcher, tokenizer.vocab_size) == allowed_ids(reference, tokenizer.vocab_size)
    table.release(matcher)


def test_a_failure_leaves_its_reason(tokenizer: Tokenizer) -> None:
    compiled = compile_constraint(Constraint("regex", "a"), tokenizer)
    address, matcher = matcher_pointers(compiled.matcher([0]))
    table = MatcherFunctions.from_address(address)
    assert table.accept(matcher, ord("b")) != 0
    assert b"98" in ctypes.string_at(table.error(matcher))
    assert table.rollback(matcher, 1) != 0
    assert ctypes.string_at(table.error(matcher)) == b"cannot take back 1 of 0 tokens"
    table.release(matcher)


def test_a_matcher_lives_until_it_is_released_and_no_longer(tokenizer: Tokenizer) -> None:
    compiled = compile_constraint(Constraint("regex", "a"), tokenizer)
    before = num_held_matchers()
    handed = [matcher_pointers(compiled.matcher([0])) for _ in range(8)]
    assert num_held_matchers() == before + 8
    assert len({matcher for _, matcher in handed}) == 8
    threads = [
        threading.Thread(target=MatcherFunctions.from_address(address).release, args=(matcher,))
        for address, matcher in handed
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert num_held_matchers() == before


def test_the_installed_library_has_the_c_functions() -> None:
    found = grammar_functions()
    assert found is not None
    assert set(found) == set(FUNCTIONS)
    assert all(address > 0 for address in found.values())


def test_another_version_of_the_library_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from pocketllm.structured import grammar_library

    monkeypatch.setattr(grammar_library, "_TESTED_VERSION", b"llguidance@99.")
    grammar_library.grammar_functions.cache_clear()
    try:
        assert grammar_functions() is None
    finally:
        grammar_library.grammar_functions.cache_clear()
