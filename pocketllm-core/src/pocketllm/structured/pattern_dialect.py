"""Regular expressions of schemas: the part of the syntax that means the same to validators and to the matcher.

Schemas use ECMA-262 expressions, validators often Python's, the matcher Rust's. What they read differently is rewritten
so that whatever it matches satisfies all of them, or refused by name. What the matcher lacks (look-around, back
references, word borders) it refuses itself.
"""

from __future__ import annotations

import re
import string

MAX_PATTERN_CHARS = 4096

# After a backslash: characters that stand for themselves, and controls written alike.
_PLAIN_ESCAPES = frozenset("nrtfv^$\\.*+?()[]{}|-")
_HEX_ESCAPE = re.compile(r"x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}")
_REPEAT = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")

# The shorthand classes: what all readers put in them, and what at least one of them does.
_SURE = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\x09-\x0d\x20"}
_ANY = {
    "d": r"\p{Nd}",
    "w": r"\p{L}\p{M}\p{N}_",
    "s": r"\x09-\x0d\x1c-\x20\x{85}\x{a0}\x{1680}\x{180e}\x{2000}-\x{200a}"
    r"\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}",
}
NAMED_CONTROLS = frozenset("\b\t\n\f\r")
"""The control characters that JSON strings have short escapes for; the matcher writes no others."""

# ECMA-262 ends a line at four characters, the others at one.
_DOT = r"[^\n\r\x{2028}\x{2029}]"


def is_unwritable(char: str) -> bool:
    """Whether the matcher cannot write ``char`` in a JSON string; it would leave the character out of a constant."""
    return (char < " " and char not in NAMED_CONTROLS) or char == "\x7f"


def shared_pattern(pattern: str) -> str:
    """``pattern`` as the matcher takes it.

    Raises:
        ValueError: the message completes "the pattern …".
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"has {len(pattern)} characters; at most {MAX_PATTERN_CHARS} are accepted")
    if any(0xD800 <= ord(char) < 0xE000 for char in pattern):
        raise ValueError("holds a lone surrogate")
    if any(map(is_unwritable, pattern)):
        raise ValueError("holds a control character: write it as an escape, in a negated class")
    return _Rewriter(pattern).run()


class _Rewriter:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._out: list[str] = []

    def run(self) -> str:
        after_repeat = False
        while self._at < len(self._text):
            char = self._text[self._at]
            repeats = char in "*+?" or (char == "{" and self._repeat())
            if repeats and after_repeat:
                # A reluctant mark changes which match is found, not whether there is one.
                if char != "?":
                    raise ValueError(f'has "{char}" after a repetition (character {self._at}): use a group')
                self._at += 1
                after_repeat = False
                continue
            if repeats:
                self._take(1)
            else:
                self._piece(char)
            after_repeat = repeats
        return "".join(self._out)

    def _repeat(self) -> bool:
        """Take all of a ``{m,n}`` but its last character."""
        found = _REPEAT.match(self._text, self._at)
        if found is None:
            raise ValueError(f'has a "{{" (character {self._at}) that begins no repetition: escape it')
        self._take(found.end() - self._at - 1)
        return True

    def _take(self, length: int, instead: str | None = None) -> None:
        self._out.append(self._text[self._at : self._at + length] if instead is None else instead)
        self._at += length

    def _piece(self, char: str) -> None:
        if char == "\\":
            self._escape(negated=None)
        elif char == "[":
            self._character_class()
        elif char == ".":
            self._take(1, _DOT)
        elif char == "(" and self._text.startswith("(?", self._at) and not self._text.startswith("(?:", self._at):
            raise ValueError(f'has the group "{self._text[self._at : self._at + 4]}": only (…) and (?:…) are taken')
        elif char == "(" and self._text.startswith("(?:", self._at):
            self._take(3)
        elif char == "]":
            raise ValueError(f'has a "]" (character {self._at}) that closes nothing: escape it')
        else:
            self._take(1)

    def _character_class(self) -> None:
        negated = self._text.startswith("[^", self._at)
        self._take(2 if negated else 1)
        if self._text.startswith("]", self._at):
            raise ValueError('has a character class that begins with "]": escape it')
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "]":
                self._take(1)
                return
            if char == "\\":
                self._escape(negated=negated)
            elif char == "[":
                raise ValueError('has a "[" inside a character class: escape it')
            elif char in "&~-" and self._text.startswith(char * 2, self._at):
                raise ValueError(f'has "{char * 2}" inside a character class: escape it')
            else:
                self._take(1)
        raise ValueError("has a character class that is not closed")

    def _escape(self, *, negated: bool | None) -> None:
        """One escape; ``negated`` is None outside character classes."""
        name = self._text[self._at + 1 : self._at + 2]
        found = _HEX_ESCAPE.match(self._text, self._at + 1)
        if found is not None:
            code = int(found.group()[1:], 16)
            if 0xD800 <= code < 0xE000:
                raise ValueError("escapes half of a surrogate pair: write the character itself")
            if is_unwritable(chr(code)) and not negated:
                raise ValueError(f'has the escape "\\{found.group()}" for a control character, which cannot be written')
            self._take(1 + len(found.group()), f"\\x{{{code:x}}}")
        elif name and name in _PLAIN_ESCAPES:
            self._take(2)
        elif name and name in string.punctuation:
            self._take(2, "/" if name == "/" else f"\\x{{{ord(name):x}}}")
        elif name and name in "dwDWsS":
            self._take(2, _class_text(name, negated))
        else:
            raise ValueError(f'has the escape "\\{name}", which has no common meaning: write it another way')


def _class_text(name: str, negated: bool | None) -> str:
    """A shorthand class, spelled out: its smallest reading, or in a negated class the largest."""
    kind = name.lower()
    if name == kind:
        return f"[{_SURE[kind]}]" if negated is None else (_ANY if negated else _SURE)[kind]
    return f"[^{(_SURE if negated else _ANY)[kind]}]"
