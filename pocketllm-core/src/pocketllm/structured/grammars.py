"""Grammars in the library's own text, and what is asked of the library about them."""

from __future__ import annotations

import functools
import re
from typing import Any

import msgspec

from pocketllm.structured.token_table import TokenTable

MAX_LEXER_STATES = 25_000
# In the library's own measures: about 20 ms to build, 20 ms for a mask, and 2 kB for each state of the lexer. An object
# with optional properties takes four items of a row for each.
MATCHER_LIMITS = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 100_000,
    "max_items_in_row": 20_000,
    "max_lexer_states": MAX_LEXER_STATES,
    "max_grammar_size": 200_000,
}
NOTHING = "nothing satisfies it"

# Characters of white space between two tokens of JSON. Without a bound, a small model writes line ends until its budget
# is used up.
_WHITE_SPACE = r"[\x20\x0A\x0D\x09]{1,40}"
# Without \uXXXX a text has one spelling, so a key cannot come twice in two spellings; letters stay as they are.
_JSON_OPTIONS = {"whitespace_pattern": _WHITE_SPACE, "json_allowed_escapes": 'nrbtf\\"'}
_NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
_QUOTED_SOURCE = re.compile(r"^\s+(?:[0-9]+ \|.*|\^+\s*)$", re.MULTILINE)


class Grammar(msgspec.Struct, frozen=True):
    """A grammar in the library's text, and a matcher of it that stays at the start."""

    table: TokenTable
    text: str
    library: Any


def schema_text(document: dict[str, Any]) -> str:
    return msgspec.json.encode({**document, "x-guidance": _JSON_OPTIONS}).decode()


def schema_grammar(document: dict[str, Any]) -> str:
    return lark_grammar(f"start: %json {schema_text(document)}")


def regex_grammar(pattern: str) -> str:
    from llguidance import LLMatcher

    if not pattern:
        return lark_grammar('start: ""')
    # The library knows how to quote an expression in its own grammars.
    made = msgspec.json.decode(LLMatcher.grammar_from_regex(pattern))
    return lark_grammar(made["grammars"][0]["lark_grammar"])


def lark_grammar(text: str) -> str:
    # Where one text alone can follow, the library would tokenize all of it for every mask, to offer the usual token.
    return msgspec.json.encode({"grammars": [{"lark_grammar": text + _NO_FORCING}]}).decode()


def new_matcher(table: TokenTable, grammar: str) -> Any:
    from llguidance import LLMatcher, LLParserLimits

    limits: Any = functools.partial(LLParserLimits, verbose_errors=False)
    return LLMatcher(table.library, grammar, log_level=0, limits=limits(**MATCHER_LIMITS))


def problem_of(library: Any) -> str | None:
    """Why a grammar is of no use, or None. Grammars that nothing can match are found out by their first mask."""
    if library.is_error():
        return str(library.get_error()).strip()
    mask = library.compute_bitmask() if not library.is_accepting() else b"\x01"
    if library.is_error():
        return str(library.get_error()).strip()
    return None if any(mask) else NOTHING


def in_few_words(problem: str, limit: int = 400) -> str:
    """The library's message without the source it quotes."""
    if "NoExtension" in problem:
        return NOTHING
    problem = _QUOTED_SOURCE.sub("", problem.rpartition("failed to compile JSON schema: ")[2])
    if problem.startswith("oneOf "):
        return "its options may overlap, as far as can be told: use anyOf"
    return " ".join(problem.split())[:limit]


def is_unsatisfiable(problem: str) -> bool:
    return "nsatisfiable" in problem or in_few_words(problem) == NOTHING
