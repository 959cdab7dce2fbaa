"""Native matchers against core's, which are the reference: the same masks, ends and roll-backs on every walk."""

from __future__ import annotations

import ctypes
import json
import random
import threading
from pathlib import Path

import pytest

from pocketllm.checkpoint import Tokenizer, open_checkpoint
from pocketllm.errors import EngineError
from pocketllm.structured import TokenMatcher, compile_constraint
from pocketllm.structured.c_functions import MatcherFunctions, num_held_matchers
from pocketllm.structured.grammars import MATCHER_LIMITS
from pocketllm.types import Constraint
from pocketllm_cpp import constraints
from pocketllm_cpp.constraints import ConstraintMatchers
from tests.structured.vocabularies import byte_level, sentence_piece

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "n": {"type": "integer"},
            "ok": {"type": "boolean"},
        },
        "required": ["name", "ok"],
        "additionalProperties": False,
    }
)
GRAMMAR = 'start: item ("," item)*\nitem: /[a-c]+/ | "(" start ")"'
CONSTRAINTS = [
    Constraint("json_object", ""),
    Constraint("json_schema", SCHEMA),
    Constraint("regex", "[a-z]{2,5}( [0-9]+)?"),
    Constraint("choice", '["red", "green", "greenish"]'),
    Constraint("grammar", GRAMMAR),
]
AFTER = [
    Constraint("regex", "(yes|no)!", after="</think>"),
    Constraint("regex", "(yes|no)!", after="</think>", opening="<|other|>"),
    Constraint("regex", "(yes|no)!", after="</think>", opening="<no such token>"),
    Constraint("choice", '["b"]', after="aab"),
]


class Table:
    """A native matcher with the members of a TokenMatcher that are compared."""

    def __init__(self, address: int, matcher: int, vocab_size: int) -> None:
        self._table = MatcherFunctions.from_address(address)
        self._matcher = matcher
        self._row = (ctypes.c_uint32 * -(-vocab_size // 32))()

    @property
    def is_done(self) -> bool:
        return bool(self._table.is_done(self._matcher))

    @property
    def error(self) -> str:
        return ctypes.string_at(self._table.error(self._matcher)).decode()

    def mask(self) -> bytes | None:
        if self._table.fill_mask(self._matcher, ctypes.addressof(self._row), len(self._row)):
            return None
        return bytes(self._row)

    def accept(self, token: int) -> bool:
        return bool(self._table.accept(self._matcher, token) == 0)

    def rollback(self, num_tokens: int) -> bool:
        return bool(self._table.rollback(self._matcher, num_tokens) == 0)

    def release(self) -> None:
        self._table.release(self._matcher)


def reference_mask(matcher: TokenMatcher, vocab_size: int) -> bytes | None:
    row = (ctypes.c_uint32 * -(-vocab_size // 32))()
    try:
        matcher.fill_mask(ctypes.addressof(row), len(row))
    except EngineError:
        return None
    return bytes(row)


def walk_both(
    tokenizer: Tokenizer, constraint: Constraint, stop_ids: list[int], seed: int, num_tokens: int = 60
) -> None:
    """A random walk of both matchers, with roll-backs and tokens that are not allowed."""
    randomness = random.Random(seed)
    vocab_size = tokenizer.vocab_size
    reference = compile_constraint(constraint, tokenizer).matcher(stop_ids)
    ((address, pointer),) = ConstraintMatchers(tokenizer).pointers(constraint, stop_ids, 1)
    native = Table(address, pointer, vocab_size)
    num_accepted = 0
    for _ in range(num_tokens):
        mask = native.mask()
        assert mask == reference_mask(reference, vocab_size)
        assert native.is_done == reference.is_done
        allowed = [] if mask is None else [t for t in range(vocab_size) if mask[t // 8] >> t % 8 & 1]
        if num_accepted and randomness.random() < 0.15:
            count = randomness.randint(0, min(num_accepted, 4))
            assert native.rollback(count)
            reference.rollback(count)
            num_accepted -= count
            continue
        token = (
            randomness.choice(allowed) if allowed and randomness.random() < 0.9 else randomness.randrange(vocab_size)
        )
        accepted = native.accept(token)
        assert accepted == reference.accept(token), (constraint, token)
        if not accepted:
            assert str(token) in native.error
        num_accepted += accepted
    assert not native.rollback(num_accepted + 1)
    assert "cannot take back" in native.error
    native.release()


@pytest.mark.parametrize("constraint", [*CONSTRAINTS, *AFTER], ids=lambda c: f"{c.kind} {c.after}{c.opening}".strip())
@pytest.mark.parametrize("vocabulary", [byte_level, sentence_piece], ids=["byte level", "sentencepiece"])
def test_a_native_matcher_is_cores_matcher(constraint: Constraint, vocabulary: object) -> None:
    tokenizer = vocabulary()  # type: ignore[operator]
    other = tokenizer.token_id("<|other|>")
    stop_sets = ([tokenizer.eos_token_id or 0], [], [token for token in (other, tokenizer.eos_token_id) if token])
    for seed, stop_ids in enumerate(stop_sets):
        for walk in range(3):
            walk_both(tokenizer, constraint, stop_ids, 10 * seed + walk)


def test_a_native_matcher_is_cores_matcher_on_a_real_vocabulary(smollm2_path: Path) -> None:
    tokenizer = open_checkpoint(smollm2_path).tokenizer()
    for seed, constraint in enumerate((Constraint("json_schema", SCHEMA), AFTER[0])):
        walk_both(tokenizer, constraint, [2], seed, num_tokens=25)


def test_a_lexer_that_is_full_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for few states the library gives up in the middle of a text; a fresh matcher continues where it was."""
    tokenizer = byte_level()
    constraint = Constraint("regex", "[a-z]{5}( [a-z]{3,9}){20}")
    walk_both(tokenizer, constraint, [0], 5)
    small = {**MATCHER_LIMITS, "max_lexer_states": 60}
    monkeypatch.setattr(constraints, "MATCHER_LIMITS", small)
    ((address, pointer),) = ConstraintMatchers(tokenizer).pointers(constraint, [0], 1)
    native = Table(address, pointer, tokenizer.vocab_size)
    for token in b"abcde " + b"xyz " * 8:
        mask = native.mask()
        if mask is None:
            assert "cannot be followed any further" in native.error
            break
        assert native.accept(token)
    native.release()


def test_many_threads_may_ask_for_matchers_of_one_constraint() -> None:
    tokenizer = byte_level()
    matchers = ConstraintMatchers(tokenizer)
    masks: list[bytes | None] = []

    def make() -> None:
        for address, pointer in matchers.pointers(CONSTRAINTS[1], [0], 4):
            native = Table(address, pointer, tokenizer.vocab_size)
            masks.append(native.mask())
            native.release()

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(masks) == 24
    assert len(set(masks)) == 1
    assert masks[0] is not None


def test_without_the_librarys_c_functions_python_matchers_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "grammar_functions", lambda: None)
    before = num_held_matchers()
    tokenizer = byte_level()
    ((address, pointer),) = ConstraintMatchers(tokenizer).pointers(Constraint("choice", '["a"]'), [0], 1)
    assert num_held_matchers() == before + 1
    native = Table(address, pointer, tokenizer.vocab_size)
    assert native.accept(ord("a"))
    assert native.is_done
    native.release()
    assert num_held_matchers() == before
