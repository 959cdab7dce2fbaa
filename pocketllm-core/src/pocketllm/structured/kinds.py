"""The kinds of constraints: from a constraint's text to a grammar of the library that is known to work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from pocketllm.errors import ConfigurationError
from pocketllm.structured.blame import blame
from pocketllm.structured.grammars import (
    Grammar,
    in_few_words,
    lark_grammar,
    new_matcher,
    problem_of,
    regex_grammar,
    schema_grammar,
    schema_text,
)
from pocketllm.structured.lark_text import lark_parts
from pocketllm.structured.schema_subset import read_schema, rewrite_schema
from pocketllm.structured.token_table import TokenTable, token_table

if TYPE_CHECKING:
    from pocketllm.checkpoint import Tokenizer

MAX_REGEX_CHARS = 64 * 1024
MAX_CHOICES = 10_000

_REGEX_META = frozenset("\\.+*?()|[]{}^$#&-~/")


def _json_object(text: str, tokenizer: Tokenizer, param: str) -> Grammar:
    return _json_schema('{"type": "object"}', tokenizer, param)


def _json_schema(text: str, tokenizer: Tokenizer, param: str) -> Grammar:
    schema = rewrite_schema(read_schema(text, param=param), param=param)
    table = token_table(tokenizer)
    grammar = schema_grammar(schema.document())
    library = new_matcher(table, grammar)
    problem = problem_of(library)
    if problem is not None:
        raise blame(schema, table, problem, param)
    return Grammar(table, grammar, library)


def _regex(text: str, tokenizer: Tokenizer, param: str) -> Grammar:
    if len(text) > MAX_REGEX_CHARS:
        raise ConfigurationError(
            f"{param}: the expression has {len(text)} characters; at most {MAX_REGEX_CHARS} are accepted.", param=param
        )
    return _checked(token_table(tokenizer), regex_grammar(text), "regular expression", param)


def _choice(text: str, tokenizer: Tokenizer, param: str) -> Grammar:
    try:
        choices = msgspec.json.decode(text, type=list[str])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigurationError(f"{param}: a choice is a list of strings: {error}", param=param) from None
    if not 0 < len(choices) <= MAX_CHOICES or "" in choices:
        raise ConfigurationError(f"{param}: a choice takes 1 to {MAX_CHOICES} strings that are not empty.", param=param)
    pattern = "|".join(map(_escaped, dict.fromkeys(choices)))
    return _checked(token_table(tokenizer), regex_grammar(pattern), "choice", param)


def _grammar(text: str, tokenizer: Tokenizer, param: str) -> Grammar:
    try:
        parts = lark_parts(text)
    except ValueError as error:
        raise ConfigurationError(f"{param}: {error}", param=param) from None
    for written in parts.attributes:
        if "temperature" in written:
            raise ConfigurationError(
                f"{param}: the grammar sets a temperature ({written.strip()}), which is not acted on: remove it.",
                param=param,
            )
    if "::=" in text and "start:" not in text:
        raise ConfigurationError(
            f'{param}: the grammar is written with "::=". Grammars are Lark text, with a rule named "start".',
            param=param,
        )
    for start, end, value in reversed(parts.schemas):
        schema = rewrite_schema(read_schema(msgspec.json.encode(value).decode(), param=param), param=param)
        text = text[:start] + schema_text(schema.document()) + text[end:]
    # A control token that the grammar spells out in quotes is meant as it is written there.
    spelled = [
        token
        for token in range(tokenizer.vocab_size)
        if tokenizer.is_special(token) and any(tokenizer.token_text(token) in literal for literal in parts.literals)
    ]
    return _checked(token_table(tokenizer, spelled), lark_grammar(text), "grammar", param)


GRAMMAR_MAKERS: dict[str, Callable[[str, Tokenizer, str], Grammar]] = {
    "json_object": _json_object,
    "json_schema": _json_schema,
    "regex": _regex,
    "grammar": _grammar,
    "choice": _choice,
}


"""By kind: ``make(text, tokenizer, param)``; raises ConfigurationError about ``param``."""

KINDS = tuple(GRAMMAR_MAKERS)


def _checked(table: TokenTable, grammar: str, what: str, param: str) -> Grammar:
    library = new_matcher(table, grammar)
    problem = problem_of(library)
    if problem is not None:
        raise ConfigurationError(f"{param}: the {what} cannot be used: {in_few_words(problem)}", param=param)
    return Grammar(table, grammar, library)


def _escaped(text: str) -> str:
    pieces = []
    for char in text:
        if char in _REGEX_META:
            pieces.append("\\" + char)
        elif ord(char) < 0x20 or ord(char) == 0x7F:
            pieces.append(f"\\x{ord(char):02x}")
        else:
            pieces.append(char)
    return "".join(pieces)
