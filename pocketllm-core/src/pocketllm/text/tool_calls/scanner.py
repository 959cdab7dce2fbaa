"""Reading a text that arrives in pieces: a generator that yields whenever it needs more of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A reader: each yield asks for more text, its return value is what it read. Raises :class:`Malformed`."""

SPACE = " \t\r\n"
_SPACES = re.compile(f"[{SPACE}]*")


class Malformed(ValueError):
    """The text does not follow the syntax, or ended before it was complete."""


def num_partial(text: str, marks: Iterable[str], start: int = 0) -> int:
    """Length of the longest end of ``text[start:]`` that is the beginning, but not all, of one of ``marks``."""
    longest = 0
    for mark in marks:
        for length in range(min(len(mark) - 1, len(text) - start), longest, -1):
            if text.endswith(mark[:length]):
                longest = length
                break
    return longest


class TextScanner:
    """The text of one reader. What a method consumed is gone, so memory holds only what is undecided.

    A method decides as soon as the text allows it and consumes the same characters however the text is cut.
    """

    def __init__(self) -> None:
        self._text = ""
        self._position = 0
        self._ended = False

    def feed(self, text: str) -> None:
        """Add text behind what is there."""
        self._text = self._text[self._position :] + text
        self._position = 0

    def end(self) -> None:
        """Say that there will be no more."""
        self._ended = True

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def rest(self) -> str:
        """Text added and not consumed."""
        return self._text[self._position :]

    def expect(self, *marks: str) -> Reading[str]:
        """Consume one of ``marks``, none of which begins another, and return it."""
        mark = yield from self.peek(*marks)
        if mark is None:
            raise Malformed(f"expected one of {marks}")
        self._position += len(mark)
        return mark

    def peek(self, *marks: str) -> Reading[str | None]:
        """Which of ``marks`` comes next, or None if the text continues with something else. Consumes nothing."""
        longest = max(map(len, marks))
        while True:
            ahead = self._text[self._position : self._position + longest]
            for mark in marks:
                if ahead.startswith(mark):
                    return mark
            if not any(mark.startswith(ahead) for mark in marks):
                return None
            yield from self._more()

    def peek_char(self) -> Reading[str]:
        """The next character. Consumes nothing."""
        while self._position == len(self._text):
            yield from self._more()
        return self._text[self._position]

    def at_end(self) -> Reading[bool]:
        """Whether the text ends here."""
        while self._position == len(self._text):
            if self._ended:
                return True
            yield
        return False

    def take_space(self) -> Reading[str]:
        """Consume white space, possibly none."""
        pieces = []
        while True:
            found = _SPACES.match(self._text, self._position)
            assert found is not None
            pieces.append(found[0])
            self._position = found.end()
            if self._position < len(self._text) or self._ended:
                return "".join(pieces)
            yield

    def take_before(self, stop: re.Pattern[str]) -> Reading[str]:
        """Consume up to a character that ``stop`` (a class of characters) matches, and not that character."""
        pieces = []
        while True:
            found = stop.search(self._text, self._position)
            end = len(self._text) if found is None else found.start()
            pieces.append(self._text[self._position : end])
            self._position = end
            if found is not None:
                return "".join(pieces)
            yield from self._more()

    def take_through(self, stop: re.Pattern[str], emit: Callable[[str], None]) -> Reading[str]:
        """Pass on everything through a character that ``stop`` (a class of characters) matches; return that one."""
        while True:
            found = stop.search(self._text, self._position)
            end = len(self._text) if found is None else found.end()
            if end > self._position:
                emit(self._text[self._position : end])
                self._position = end
            if found is not None:
                return found[0]
            yield from self._more()

    def take_char(self, emit: Callable[[str], None]) -> Reading[None]:
        """Pass on one character, whichever it is."""
        emit((yield from self.peek_char()))
        self._position += 1

    def take_until(self, mark: str, emit: Callable[[str], None]) -> Reading[None]:
        """Pass on everything before ``mark``, piece by piece, and consume the mark."""
        while True:
            found = self._text.find(mark, self._position)
            end = found if found >= 0 else len(self._text) - num_partial(self._text, (mark,), self._position)
            if end > self._position:
                emit(self._text[self._position : end])
                self._position = end
            if found >= 0:
                self._position += len(mark)
                return
            yield from self._more()

    def _more(self) -> Reading[None]:
        if self._ended:
            raise Malformed("the text ends inside a call")
        yield
