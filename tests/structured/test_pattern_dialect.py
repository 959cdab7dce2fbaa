"""Patterns that are read alike by everybody are taken; what they match, Python's and ECMA's readers match too."""

from __future__ import annotations

import json
import random
import re

import pytest

from pocketllm.checkpoint import Tokenizer
from pocketllm.structured import compile_constraint
from pocketllm.structured.pattern_dialect import MAX_PATTERN_CHARS, shared_pattern
from pocketllm.types import Constraint
from tests.structured.sampling import walk


@pytest.mark.parametrize(
    ("pattern", "rewritten"),
    [
        ("^[a-z]{2,3}$", "^[a-z]{2,3}$"),
        (r"\d\w", "[0-9][0-9A-Za-z_]"),
        (r"[\d-]", "[0-9-]"),
        (r"\D[^\d]", r"[^\p{Nd}][^\p{Nd}]"),
        (r"a\/b", "a/b"),
        (r"\u0041\x42", r"\x{41}\x{42}"),
        ("a+?b??(?:c)*?", "a+b?(?:c)*"),
        (r"[^\x00-\x1f]", r"[^\x{0}-\x{1f}]"),
    ],
)
def test_a_shared_pattern_is_rewritten_for_the_library(pattern: str, rewritten: str) -> None:
    assert shared_pattern(pattern) == rewritten


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"(?i)a", r"(?=a)", r"(?<n>a)", r"\p{L}", r"\cA", r"\0", r"[[:alpha:]]", "[a&&b]", "[a--b]", "[]a]", "[a"),
        *("a{,3}", "a]", "a++", "a*+", "\ud800", r"\ud83d", "a\x00", r"\x00", r"[\x00]", "\\"),
        "x" * (MAX_PATTERN_CHARS + 1),
    ],
)
def test_a_pattern_that_is_not_shared_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"^(has|holds|escapes) "):
        shared_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\S+$",
        r"^\s\S$",
        r"^[^\s,]+$",
        r"^[\S]$",
        r"^\d{3}-\w+$",
        r"^.{3}$",
        r"^[^\x00-\x1f\"]*$",
        r"^(a|b\.)+c?$",
        r"^\W$",
        r"^-?[0-9]+(\.[0-9]+)?$",
        r"^[^<>\\/]+$",
        r"^\$\{[a-z]+\}$",
        r"^a[\"\'\#\&]\@?$",
    ],
)
def test_whatever_is_generated_matches(pattern: str, tokenizer: Tokenizer) -> None:
    constraint = Constraint("json_schema", json.dumps({"type": "string", "pattern": pattern}))
    compiled = compile_constraint(constraint, tokenizer)
    stop_ids = [tokenizer.eos_token_id or 0]
    num_ended = 0
    # Python's own reading of the classes, and the narrower one of ECMA-262.
    for flags in (re.NOFLAG, re.ASCII):
        reader = re.compile(pattern, flags)
        for seed in range(12):
            text = walk(compiled.matcher(stop_ids), tokenizer, stop_ids, random.Random(seed), max_tokens=40)
            if text is not None:
                assert reader.search(json.loads(text)), text
                num_ended += 1
    assert num_ended >= 4
