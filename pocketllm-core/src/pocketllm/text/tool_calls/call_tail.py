"""The streaming parser that the built-in syntaxes share.

A completion is content and then, perhaps, a tail of calls that reaches to its end. The first mark that can start a
tail starts it; if anything from there on does not follow the syntax, there are no calls and all of it is content.
"""

from __future__ import annotations

import enum
import re
from abc import ABC, abstractmethod
from collections.abc import Callable

from pocketllm.text.tool_calls.base import CallDelta, ParsedCalls, ToolDelta, Tools, new_call_id
from pocketllm.text.tool_calls.scanner import SPACE, Malformed, Reading, TextScanner, num_partial
from pocketllm.text.tool_calls.typing_rules import ToolSchemas


class CallSink:
    """Takes the calls a reader finds, piece by piece."""

    def __init__(self) -> None:
        self.num_begun = 0
        self.num_ended = 0
        self._names: list[str | None] = []  # a name begins a call; None stands for a piece of arguments
        self._pieces: list[str] = []

    def begin(self, name: str) -> None:
        """A call of ``name`` begins; the one before it is complete."""
        self.num_begun += 1
        self._names.append(name)
        self._pieces.append("")

    def arguments(self, text: str) -> None:
        """More of the JSON text of the current call's arguments."""
        self._names.append(None)
        self._pieces.append(text)

    def end(self) -> None:
        """The current call is complete."""
        self.num_ended += 1

    def take(self, new_id: Callable[[], str]) -> tuple[CallDelta, ...]:
        """Everything since the last call: per call its name, then its arguments as one piece."""
        names, self._names = self._names, []
        pieces, self._pieces = self._pieces, []
        index = self.num_begun - sum(name is not None for name in names) - 1
        deltas = []
        gathered: list[str] = []
        for name, piece in [*zip(names, pieces, strict=True), ("", "")]:
            if name is None:
                gathered.append(piece)
                continue
            if text := "".join(gathered):
                deltas.append(CallDelta(index, arguments_delta=text))
            gathered = []
            if name:
                index += 1
                deltas.append(CallDelta(index, new_id(), name))
        return tuple(deltas)


class TailSyntax(ABC):
    """A syntax whose calls form one tail, up to the end of the completion.

    Subclasses set the marks and write two parsers: ``parse`` and ``read``.
    """

    name: str
    special_texts: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    """Each starts the tail wherever it stands."""
    leading_marks: tuple[str, ...] = ()
    """Each starts the tail if nothing but white space is before it."""

    @abstractmethod
    def recognises(self, template_source: str | None, model_type: str) -> bool: ...

    @abstractmethod
    def parse(self, text: str, tools: Tools) -> ParsedCalls | None: ...

    @abstractmethod
    def read(self, scanner: TextScanner, sink: CallSink, schemas: ToolSchemas) -> Reading[None]:
        """Read from the mark to the end of the text, reporting to ``sink``; names are never empty.

        Returns only once the text has ended; raises :class:`Malformed` as early as the fault is certain.
        """

    def kept_space(self, space: str) -> str:
        """What of the white space between content and tail belongs to the content."""
        return ""

    def content_before(self, text: str, start: int) -> str:
        """The content of a completion whose tail begins at ``start``."""
        content = text[:start].rstrip(SPACE)
        return content + self.kept_space(text[len(content) : start])

    def stream(self, tools: Tools, *, eager: bool = False, new_id: Callable[[], str] = new_call_id) -> TailStream:
        return TailStream(self, ToolSchemas(tools), eager=eager, new_id=new_id)


class _Phase(enum.Enum):
    SEARCH = enum.auto()
    BLOCK = enum.auto()
    CONTENT = enum.auto()
    FINISHED = enum.auto()


class TailStream:
    """Finds the tail, drives the reader, and decides when what it found may leave."""

    def __init__(self, syntax: TailSyntax, schemas: ToolSchemas, *, eager: bool, new_id: Callable[[], str]) -> None:
        self._syntax = syntax
        self._eager = eager
        self._new_id = new_id
        self._phase = _Phase.SEARCH
        self._mark = re.compile("|".join(map(re.escape, syntax.marks))) if syntax.marks else None
        self._at_beginning = bool(syntax.leading_marks)
        self._first_chars = frozenset(mark[0] for mark in syntax.marks)
        self._held = ""  # while searching: white space and the beginning of a mark; then the white space alone
        self._spaces: list[str] = []  # more of it, kept apart so that a long run of white space stays cheap
        self._tail: list[str] = []  # pieces of the tail, kept while they may have to leave as content
        self._scanner = TextScanner()
        self._sink = CallSink()
        self._reading = syntax.read(self._scanner, self._sink, schemas)
        self._num_calls = 0

    @property
    def num_calls(self) -> int:
        return self._num_calls

    @property
    def calls_complete(self) -> bool:
        return self._phase is _Phase.FINISHED and 0 < self._num_calls == self._sink.num_ended

    def feed(self, text: str) -> ToolDelta:
        if self._phase is _Phase.CONTENT:
            return ToolDelta(text)
        if self._phase is _Phase.FINISHED or not text:
            return ToolDelta()
        content = ""
        if self._phase is _Phase.SEARCH:
            ends_in_space = not self._held or self._held[-1] in SPACE
            if ends_in_space and not text.strip(SPACE):
                self._spaces.append(text)
                return ToolDelta()
            held = self._take_held()
            if not held and not self._at_beginning and text[-1] not in SPACE and self._first_chars.isdisjoint(text):
                return ToolDelta(text)  # nearly all text of nearly all answers
            content, text = self._search(held + text)
            if not text:
                return ToolDelta(content)
            self._phase = _Phase.BLOCK
        delta = self._read(text)
        return ToolDelta(content + delta.content, delta.calls) if content else delta

    def finish(self) -> ToolDelta:
        delta = ToolDelta()
        if self._phase is _Phase.SEARCH:
            delta = ToolDelta(self._take_held())
        elif self._phase is _Phase.BLOCK:
            self._scanner.end()
            delta = self._read("")
        self._phase = _Phase.FINISHED
        return delta

    def _take_held(self) -> str:
        held, self._held = self._held, ""
        if self._spaces:
            held += "".join(self._spaces)
            self._spaces.clear()
        return held

    def _search(self, text: str) -> tuple[str, str]:
        """Split into content that may leave and the tail, empty while there is none; hold the rest."""
        start = self._find(text)
        if start is None:
            end = len(text) - num_partial(text, self._syntax.marks)
        else:
            end = start
        if self._at_beginning and start is None:
            end = 0
        content = text[:end].rstrip(SPACE)
        self._held = text[len(content) : start]
        return content, "" if start is None else text[start:]

    def _find(self, text: str) -> int | None:
        if self._at_beginning:
            ahead = text.lstrip(SPACE)
            if ahead.startswith(self._syntax.leading_marks):
                return len(text) - len(ahead)
            # An empty rest is the beginning of every mark.
            self._at_beginning = any(mark.startswith(ahead) for mark in self._syntax.leading_marks)
            if not ahead:
                return None
        found = None if self._mark is None else self._mark.search(text)
        return None if found is None else found.start()

    def _read(self, text: str) -> ToolDelta:
        if text:
            self._scanner.feed(text)
            if not (self._eager and self._num_calls):
                self._tail.append(text)
        try:
            next(self._reading)
        except StopIteration:
            return self._leave()
        except Malformed:
            return self._give_up()
        return self._leave() if self._eager and self._sink.num_begun else ToolDelta()

    def _leave(self) -> ToolDelta:
        """The calls found since the last time; in front of the first one, the white space that is content."""
        content = ""
        if not self._num_calls:
            content = self._syntax.kept_space(self._held)
            self._tail.clear()
        self._num_calls = self._sink.num_begun
        return ToolDelta(content, self._sink.take(self._new_id))

    def _give_up(self) -> ToolDelta:
        self._phase = _Phase.CONTENT
        if not (self._eager and self._sink.num_begun):
            content = self._held + "".join(self._tail)
            self._tail.clear()
            return ToolDelta(content)
        delta = self._leave()
        # A call that merely breaks off has no text behind it, only the part of a tag.
        rest = "" if self._scanner.ended else self._scanner.rest
        return ToolDelta(delta.content + rest, delta.calls)
