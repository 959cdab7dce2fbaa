"""What every tool-call syntax offers, and the data its parsers hand over.

A syntax has two parsers. :meth:`ToolCallSyntax.parse` reads a whole completion; it is short, slow and the reference.
:meth:`ToolCallSyntax.stream` reads the same completion in pieces and is what requests use, streamed or not.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from pocketllm.types import Constraint

Tools = Sequence[Mapping[str, Any]] | None
"""OpenAI's ``tools``: complete ``{"type": "function", "function": {...}}`` objects. None and empty mean none."""


class ParsedCall(msgspec.Struct, frozen=True):
    """One call of a completion; ``arguments`` is the text of a JSON object, keys in order of appearance."""

    name: str
    arguments: str

    def __repr__(self) -> str:
        return f"ParsedCall(name={self.name!r}, num_argument_chars={len(self.arguments)})"


class ParsedCalls(msgspec.Struct, frozen=True):
    """A completion that ends in at least one call: the prose in front of them, and all of them."""

    content: str
    calls: tuple[ParsedCall, ...]


class CallDelta(msgspec.Struct, frozen=True):
    """What one call gained. The first delta of a call has ``id`` and ``name`` and no arguments, the others the rest."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments_delta: str = ""

    def __repr__(self) -> str:
        return f"CallDelta(index={self.index}, name={self.name!r}, num_argument_chars={len(self.arguments_delta)})"


class ToolDelta(msgspec.Struct, frozen=True):
    """What one piece of text added to the content and to the calls, each of which is added up on its own."""

    content: str = ""
    calls: tuple[CallDelta, ...] = ()


def new_call_id() -> str:
    """A fresh id, unique for all practical purposes: ``call_`` and 24 hexadecimal digits."""
    return f"call_{secrets.token_hex(12)}"


class ToolCallStream(Protocol):
    """Follows one completion. Sans-IO; an instance belongs to one thread. Any cutting gives the same sums."""

    def feed(self, text: str) -> ToolDelta:
        """Add text of the answer, after the reasoning split and stop strings; return what became certain."""

    def finish(self) -> ToolDelta:
        """End the completion and return what was held. Later calls, and later text, give an empty delta."""

    @property
    def num_calls(self) -> int:
        """Calls whose name has been returned."""

    @property
    def calls_complete(self) -> bool:
        """After :meth:`finish`: there is a call, and every one that was returned is whole.

        Only then is a finish reason ``stop`` to be reported as ``tool_calls``; ``length`` always stays.
        """


class ToolCallSyntax(Protocol):
    """One way of writing calls. Stateless; may be used from any thread."""

    @property
    def name(self) -> str:
        """Short and unique, such as ``qwen_xml``."""

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Marks that some vocabularies hold as control tokens: the ids of those must be kept in the text."""

    def recognises(self, template_source: str | None, model_type: str) -> bool:
        """Whether the checkpoint with this chat template (None: it has none) writes its calls so."""

    def parse(self, text: str, tools: Tools) -> ParsedCalls | None:
        """The calls of a complete answer, or None: the answer has none, or not all of it can be read (then the text
        is content exactly as it stands). ``tools`` types the arguments."""

    def stream(self, tools: Tools, *, eager: bool = False, new_id: Callable[[], str] = new_call_id) -> ToolCallStream:
        """A parser for one completion.

        Args:
            tools: as for :meth:`parse`.
            eager: False: no part of a call is returned before the whole completion is certain, and the sums equal
                :meth:`parse`. True: the name and then the arguments as they come; where the completion turns out
                malformed, what was returned stays, and the text from the fault on is content.
            new_id: makes the id of each call that is returned, in order.
        """


@runtime_checkable
class EnforcedSyntax(ToolCallSyntax, Protocol):
    """A syntax that brings the grammar of its calls, so that ``tool_choice`` and strict tools can be enforced.

    Optional for a plugin. Core's own syntaxes have their grammars in :mod:`pocketllm.structured.tool_call_grammars`.
    """

    def call_constraint(
        self, tools: Sequence[Mapping[str, Any]], *, mode: str, name: str | None, parallel: bool
    ) -> Constraint:
        """The constraint that holds a completion to calls which :meth:`ToolCallSyntax.parse` reads.

        Args:
            tools: not empty.
            mode: "auto": text without a call, or text and then calls; "required": at least one call and nothing else;
                "named": one call of the tool ``name`` and nothing else.
            name: the tool, for mode "named".
            parallel: more than one call may be made.

        Raises:
            ConfigurationError: a tool's schema cannot be enforced; ``param`` is "tools".
        """
