"""From a constraint's text to something matchers are made of."""

from __future__ import annotations

import functools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import msgspec

from pocketllm.errors import ConfigurationError
from pocketllm.structured.after_text import AfterText, TokenMatcher
from pocketllm.structured.lark_text import lark_parts
from pocketllm.structured.matcher import Matcher
from pocketllm.structured.refusal import SchemaRefusedError, pointer_to
from pocketllm.structured.schema_subset import RewrittenSchema, Schema, read_schema, rewrite_schema
from pocketllm.structured.token_table import TokenTable, token_table
from pocketllm.types import Constraint

if TYPE_CHECKING:
    from pocketllm.checkpoint import Tokenizer

KINDS = ("json_object", "json_schema", "regex", "grammar", "choice")
MAX_TEXT_BYTES = 1024 * 1024
MAX_REGEX_CHARS = 64 * 1024
MAX_CHOICES = 10_000
MAX_CACHE_ENTRIES = 128
MAX_CACHE_BYTES = 1024 * 1024 * 1024

# Characters of white space between two tokens of JSON. Unbounded, a small model writes line ends for ever.
_WHITE_SPACE = r"[\x20\x0A\x0D\x09]{1,40}"
# Without \uXXXX a text has one spelling, so a key cannot come twice in two spellings; letters stay as they are.
_JSON_OPTIONS = {"whitespace_pattern": _WHITE_SPACE, "json_allowed_escapes": 'nrbtf\\"'}
_NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
_QUOTED_SOURCE = re.compile(r"^\s+(?:[0-9]+ \|.*|\^+\s*)$", re.MULTILINE)
_NOTHING = "nothing satisfies it"
# What one compiled constraint holds, rounded up: by itself, with its text, and with what its lexer has met so far.
_MAX_LEXER_STATES = 25_000
# In the library's own measures: about 20 ms to build, 20 ms for a mask, and 2 kB for each state of the lexer. An object
# with optional properties takes four items of a row for each.
MATCHER_LIMITS = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 100_000,
    "max_items_in_row": 20_000,
    "max_lexer_states": _MAX_LEXER_STATES,
    "max_grammar_size": 200_000,
}
_STATES_PER_MATCHER = 200
_BYTES_PER_STATE = 2_000
_ENTRY_BYTES = 64 * 1024
_BYTES_PER_TEXT_BYTE = 64
# Compilations spent on finding which part of a refused schema is at fault.
_MAX_TRIALS = 400

_REGEX_META = frozenset("\\.+*?()|[]{}^$#&-~/")


class _Grammar(msgspec.Struct, frozen=True):
    """A grammar in the library's text, and a matcher of it that stays at the start."""

    table: TokenTable
    text: str
    library: Any


class CompiledConstraint:
    """A constraint ready for use with one vocabulary. Any thread."""

    def __init__(self, constraint: Constraint, tokenizer: Tokenizer, grammar: _Grammar) -> None:
        self.constraint = constraint
        self._tokenizer = tokenizer
        self._grammar = grammar
        self._template = grammar.library
        self._lock = threading.Lock()
        self._num_matchers = 0

    def matcher(
        self, stop_ids: Collection[int], *, after: str | None = None, opening: str | None = None
    ) -> TokenMatcher:
        """A matcher for one sequence.

        Args:
            stop_ids: tokens that end the sequence, as ``GenerationRequest.stop_token_ids`` has them.
            after, opening: see :class:`AfterText`; by default the constraint's own.
        """
        matcher = Matcher(self._copy(), self._renewed, self._grammar.table, stop_ids)
        after = self.constraint.after if after is None else after
        opening = self.constraint.opening if opening is None else opening
        if not after:
            return matcher
        return AfterText(matcher, self._tokenizer, after=after, opening=opening, stop_ids=stop_ids)

    def _copy(self) -> Any:
        # The library refuses to copy a matcher that another thread is copying.
        with self._lock:
            self._num_matchers += 1
            return self._template.deep_copy()

    def _renewed(self) -> Any:
        """A copy with a fresh lexer, which those to come share."""
        with self._lock:
            self._template = _library(self._grammar.table, self._grammar.text)
            self._num_matchers = 1
            return self._template.deep_copy()

    @property
    def table(self) -> TokenTable:
        """The vocabulary it was compiled for."""
        return self._grammar.table

    @property
    def grammar_text(self) -> str:
        """The grammar in the library's own format, which its C interface calls "llguidance"."""
        return self._grammar.text

    @property
    def num_cache_bytes(self) -> int:
        """What it is taken to occupy; the library does not tell."""
        num_states = min(_MAX_LEXER_STATES, _STATES_PER_MATCHER * self._num_matchers)
        return _ENTRY_BYTES + _BYTES_PER_TEXT_BYTE * len(self.constraint.text) + _BYTES_PER_STATE * num_states


_cache: OrderedDict[tuple[int, Constraint], CompiledConstraint] = OrderedDict()
_cache_lock = threading.Lock()


def compile_constraint(constraint: Constraint, tokenizer: Tokenizer, *, param: str | None = None) -> CompiledConstraint:
    """Validate ``constraint`` and make it ready; the last ones are remembered.

    Takes about a millisecond for common schemas and is bounded by limits on size, depth and work; belongs off an event
    loop. Any thread.

    Args:
        constraint: its text is a JSON schema, a regular expression (for the whole text, Rust's syntax), a Lark grammar
            (llguidance's dialect), a JSON list of strings, or nothing.
        tokenizer: the vocabulary.
        param: the request field to name in errors; by default that of the constraint's kind.

    Raises:
        SchemaRefusedError: a part of a JSON schema cannot be enforced; the message has its JSON pointer.
        ConfigurationError: anything else is wrong with the constraint.
    """
    key = (id(tokenizer), constraint)
    with _cache_lock:
        found = _cache.get(key)
        if found is not None and found._tokenizer is tokenizer:
            _cache.move_to_end(key)
            return found
    if param is None:
        param = "response_format" if constraint.kind.startswith("json_") else "structured_outputs"
    compiled = _compile(constraint, tokenizer, param)
    with _cache_lock:
        _cache[key] = compiled
        while len(_cache) > 1 and (
            len(_cache) > MAX_CACHE_ENTRIES or sum(entry.num_cache_bytes for entry in _cache.values()) > MAX_CACHE_BYTES
        ):
            _cache.popitem(last=False)
    return compiled


def _compile(constraint: Constraint, tokenizer: Tokenizer, param: str) -> CompiledConstraint:
    make = _MAKERS.get(constraint.kind)
    if make is None:
        raise ConfigurationError(
            f"{param}: the kind of constraint {constraint.kind!r} is unknown; use one of {', '.join(KINDS)}.",
            param=param,
        )
    num_bytes = len(constraint.text.encode("utf-8", "surrogatepass"))
    if num_bytes > MAX_TEXT_BYTES:
        raise ConfigurationError(
            f"{param}: the constraint has {num_bytes} bytes; at most {MAX_TEXT_BYTES} are accepted.", param=param
        )
    if any(0xD800 <= ord(char) < 0xE000 for char in constraint.text):
        raise ConfigurationError(f"{param}: the constraint holds a lone surrogate; remove it.", param=param)
    return CompiledConstraint(constraint, tokenizer, make(constraint.text, tokenizer, param))


# -- kinds --------------------------------------------------------------------------------------------------------


def _json_object(text: str, tokenizer: Tokenizer, param: str) -> _Grammar:
    return _json_schema('{"type": "object"}', tokenizer, param)


def _json_schema(text: str, tokenizer: Tokenizer, param: str) -> _Grammar:
    schema = rewrite_schema(read_schema(text, param=param), param=param)
    table = token_table(tokenizer)
    grammar = _schema_grammar(schema.document())
    library = _library(table, grammar)
    problem = _problem(library)
    if problem is not None:
        raise _blame(schema, table, problem, param)
    return _Grammar(table, grammar, library)


def _regex(text: str, tokenizer: Tokenizer, param: str) -> _Grammar:
    if len(text) > MAX_REGEX_CHARS:
        raise ConfigurationError(
            f"{param}: the expression has {len(text)} characters; at most {MAX_REGEX_CHARS} are accepted.", param=param
        )
    return _checked(token_table(tokenizer), _regex_grammar(text), "regular expression", param)


def _choice(text: str, tokenizer: Tokenizer, param: str) -> _Grammar:
    try:
        choices = msgspec.json.decode(text, type=list[str])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigurationError(f"{param}: a choice is a list of strings: {error}", param=param) from None
    if not 0 < len(choices) <= MAX_CHOICES or "" in choices:
        raise ConfigurationError(f"{param}: a choice takes 1 to {MAX_CHOICES} strings that are not empty.", param=param)
    pattern = "|".join(map(_escaped, dict.fromkeys(choices)))
    return _checked(token_table(tokenizer), _regex_grammar(pattern), "choice", param)


def _grammar(text: str, tokenizer: Tokenizer, param: str) -> _Grammar:
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
        text = text[:start] + _schema_text(schema.document()) + text[end:]
    # A control token that the grammar spells out in quotes is meant as it is written there.
    spelled = [
        token
        for token in range(tokenizer.vocab_size)
        if tokenizer.is_special(token) and any(tokenizer.token_text(token) in literal for literal in parts.literals)
    ]
    return _checked(token_table(tokenizer, spelled), _lark_grammar(text), "grammar", param)


_MAKERS: dict[str, Callable[[str, Tokenizer, str], _Grammar]] = {
    "json_object": _json_object,
    "json_schema": _json_schema,
    "regex": _regex,
    "grammar": _grammar,
    "choice": _choice,
}


# -- the library --------------------------------------------------------------------------------------------------


def _schema_text(document: dict[str, Any]) -> str:
    return msgspec.json.encode({**document, "x-guidance": _JSON_OPTIONS}).decode()


def _schema_grammar(document: dict[str, Any]) -> str:
    return _lark_grammar(f"start: %json {_schema_text(document)}")


def _regex_grammar(pattern: str) -> str:
    from llguidance import LLMatcher

    if not pattern:
        return _lark_grammar('start: ""')
    # The library knows how to quote an expression in its own grammars.
    made = msgspec.json.decode(LLMatcher.grammar_from_regex(pattern))
    return _lark_grammar(made["grammars"][0]["lark_grammar"])


def _lark_grammar(text: str) -> str:
    # Where one text alone can follow, the library would tokenize all of it for every mask, to offer the usual token.
    return msgspec.json.encode({"grammars": [{"lark_grammar": text + _NO_FORCING}]}).decode()


def _library(table: TokenTable, grammar: str) -> Any:
    from llguidance import LLMatcher, LLParserLimits

    limits: Any = functools.partial(LLParserLimits, verbose_errors=False)
    return LLMatcher(table.library, grammar, log_level=0, limits=limits(**MATCHER_LIMITS))


def _problem(library: Any) -> str | None:
    """Why a grammar is of no use, or None. Grammars that nothing can match are found out by their first mask."""
    if library.is_error():
        return str(library.get_error()).strip()
    mask = library.compute_bitmask() if not library.is_accepting() else b"\x01"
    if library.is_error():
        return str(library.get_error()).strip()
    return None if any(mask) else _NOTHING


def _checked(table: TokenTable, grammar: str, what: str, param: str) -> _Grammar:
    library = _library(table, grammar)
    problem = _problem(library)
    if problem is not None:
        raise ConfigurationError(f"{param}: the {what} cannot be used: {_first_lines(problem)}", param=param)
    return _Grammar(table, grammar, library)


def _first_lines(problem: str, limit: int = 400) -> str:
    """The library's message without the source it quotes."""
    if "NoExtension" in problem:
        return _NOTHING
    problem = _QUOTED_SOURCE.sub("", problem.rpartition("failed to compile JSON schema: ")[2])
    if problem.startswith("oneOf "):
        return "its options may overlap, as far as can be told: use anyOf"
    return " ".join(problem.split())[:limit]


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


def _blame(schema: RewrittenSchema, table: TokenTable, problem: str, param: str) -> SchemaRefusedError:
    """The innermost subschema that the library refuses on its own, and the keyword of it without which it does not."""
    trials = 0

    def fails(candidate: Schema) -> str | None:
        nonlocal trials
        trials += 1
        return _problem(_library(table, _schema_grammar(schema.document(candidate))))

    pointer = ""
    for place in schema.places:
        if trials >= _MAX_TRIALS:
            break
        found = fails(place.rewritten)
        # What is optional may well be unsatisfiable; that is a fault only where the whole is.
        if found is None or (_is_unsatisfiable(found) and not _is_unsatisfiable(problem)):
            continue
        pointer, problem = place.pointer, found
        # An unsatisfiable "type" is unsatisfiable through what stands beside it.
        for keyword in sorted(place.rewritten, key=lambda name: name in ("type", "properties")):
            if fails({name: value for name, value in place.rewritten.items() if name != keyword}) is None:
                origin = next((name for name in (keyword, *_ORIGINS.get(keyword, ())) if name in place.original), None)
                pointer = pointer if origin is None else pointer_to(pointer, origin)
                break
        break
    return SchemaRefusedError(pointer, f"cannot be enforced: {_first_lines(problem).rstrip('.')}.", param=param)


# Keywords of the rewritten schema that come from another one in the original.
_ORIGINS = {"prefixItems": ("items",), "items": ("additionalItems",), "allOf": ("format",)}


def _is_unsatisfiable(problem: str) -> bool:
    return "nsatisfiable" in problem or _first_lines(problem) == _NOTHING
