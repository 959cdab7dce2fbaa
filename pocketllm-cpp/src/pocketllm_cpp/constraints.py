"""Matchers of requests, as the native engine takes them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection
from typing import TYPE_CHECKING

from pocketllm.errors import PocketLLMError
from pocketllm.structured import CompiledConstraint, compile_constraint
from pocketllm.structured.c_functions import matcher_pointers
from pocketllm.structured.grammar_library import grammar_functions
from pocketllm.structured.grammars import MATCHER_LIMITS
from pocketllm.structured.token_table import TokenTable, token_table
from pocketllm_cpp import _native

if TYPE_CHECKING:
    from pocketllm.checkpoint import Tokenizer
    from pocketllm.types import Constraint


# Core has one tag; a caller's own constraint may have another.
_MAX_TAGS = 4


class ConstraintMatchers:
    """Native matchers where the grammar library's C functions are those that were tested, Python ones elsewhere, which
    need the interpreter's lock. Any thread.

    Indexing the vocabulary takes a fraction of a second, which neither an opening engine nor the first request should
    have to wait for: a thread does it meanwhile.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._functions = grammar_functions()
        self._lock = threading.Lock()
        self._vocabularies: weakref.WeakKeyDictionary[TokenTable, _native.GrammarVocabulary] = (
            weakref.WeakKeyDictionary()
        )
        self._grammars: weakref.WeakKeyDictionary[CompiledConstraint, _native.Grammar] = weakref.WeakKeyDictionary()
        self._tags: dict[str, _native.TagTokens] = {}
        if self._functions is not None:
            # No daemon: one that the interpreter ends inside of the library takes the process down.
            threading.Thread(target=self._index, name="pocketllm-cpp-vocabulary", daemon=False).start()

    def _index(self) -> None:
        with self._lock:
            try:
                self._vocabulary(token_table(self._tokenizer))
            except PocketLLMError:
                pass  # the first constraint meets it again

    def pointers(self, constraint: Constraint, stop_ids: Collection[int], count: int) -> list[tuple[int, int]]:
        """``count`` matchers at the start of the text, as the addresses that ``Engine.submit`` takes over. Any thread.

        Raises:
            ConfigurationError: the constraint cannot be used; core has refused it before.
        """
        compiled = compile_constraint(constraint, self._tokenizer)
        if self._functions is None:
            return [matcher_pointers(compiled.matcher(stop_ids)) for _ in range(count)]
        with self._lock:
            grammar = self._grammar(compiled)
            after = self._tag_tokens(constraint.after) if constraint.after else None
        opening = self._tokenizer.token_id(constraint.opening) if constraint.opening else None
        token = -1 if opening is None else opening
        return [grammar.matcher_pointers(list(stop_ids), after, not constraint.opening, token) for _ in range(count)]

    def _grammar(self, compiled: CompiledConstraint) -> _native.Grammar:
        found = self._grammars.get(compiled)
        if found is None:
            vocabulary = self._vocabulary(compiled.table)
            found = self._grammars[compiled] = _native.Grammar(vocabulary, compiled.grammar_text, MATCHER_LIMITS)
        return found

    def _tag_tokens(self, tag: str) -> _native.TagTokens:
        found = self._tags.get(tag)
        if found is None:
            if len(self._tags) >= _MAX_TAGS:
                self._tags.clear()
            found = self._tags[tag] = _native.TagTokens(self._tokenizer.all_token_bytes(), tag)
        return found

    def _vocabulary(self, table: TokenTable) -> _native.GrammarVocabulary:
        found = self._vocabularies.get(table)
        if found is None:
            assert self._functions is not None
            (end_token,) = table.end_ids
            found = _native.GrammarVocabulary(self._functions, table.marked_tokens(), end_token)
            self._vocabularies[table] = found
        return found
