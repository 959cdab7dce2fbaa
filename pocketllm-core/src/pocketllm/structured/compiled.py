"""A constraint made ready for one vocabulary, and the cache of the last ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from pocketllm.errors import ConfigurationError
from pocketllm.structured.after_text import AfterText, TokenMatcher
from pocketllm.structured.grammars import MAX_LEXER_STATES, Grammar, new_matcher
from pocketllm.structured.kinds import GRAMMAR_MAKERS, KINDS
from pocketllm.structured.matcher import Matcher
from pocketllm.structured.token_table import TokenTable
from pocketllm.types import Constraint

if TYPE_CHECKING:
    from pocketllm.checkpoint import Tokenizer

MAX_TEXT_BYTES = 1024 * 1024
MAX_CACHE_ENTRIES = 128
MAX_CACHE_BYTES = 1024 * 1024 * 1024

# What one compiled constraint holds, rounded up: of its own, with its text, and with what its lexer has met so far.
_ENTRY_BYTES = 64 * 1024
_BYTES_PER_TEXT_BYTE = 64
_STATES_PER_MATCHER = 200
_BYTES_PER_STATE = 2_000


class CompiledConstraint:
    """A constraint ready for use with one vocabulary. Any thread."""

    def __init__(self, constraint: Constraint, tokenizer: Tokenizer, grammar: Grammar) -> None:
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
            self._template = new_matcher(self._grammar.table, self._grammar.text)
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
        num_states = min(MAX_LEXER_STATES, _STATES_PER_MATCHER * self._num_matchers)
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
    make = GRAMMAR_MAKERS.get(constraint.kind)
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
