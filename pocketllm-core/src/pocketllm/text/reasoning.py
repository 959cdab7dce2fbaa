"""Splits a completion into reasoning and answer at ``<think>`` and ``</think>``.

Reasoning, if any, comes first and ends once; afterwards everything is answer, tags included. Newlines at both ends of
the reasoning and at the start of the answer that follows it are layout and are dropped.

Sans-IO. An instance follows one text and belongs to one thread.
"""

from __future__ import annotations

import enum

from pocketllm.errors import ConfigurationError

START_TAG = "<think>"
END_TAG = "</think>"

# White space a model may write before its start tag. Bounded, so that an answer of blank lines is not held without end.
_MAX_LEADING_CHARS = 16


class ReasoningMode(enum.StrEnum):
    """What the end of the prompt says about the start of the completion."""

    NONE = "none"
    """The prompt closed the reasoning, or the model has none: all is answer."""
    OPEN = "open"
    """The prompt ended inside an open tag: the completion begins with reasoning."""
    AUTO = "auto"
    """The prompt has no tag: the completion may begin with one."""


class _Phase(enum.Enum):
    BEFORE = enum.auto()
    REASONING = enum.auto()
    AFTER_TAG = enum.auto()
    CONTENT = enum.auto()


def detect_mode(prompt_text: str, *, start_tag: str = START_TAG, end_tag: str = END_TAG) -> ReasoningMode:
    """The mode for a rendered prompt, by its last tag if that is the last thing in it but white space."""
    tail = prompt_text[-(len(start_tag) + len(end_tag) + 64) :].rstrip()
    if tail.endswith(end_tag):
        return ReasoningMode.NONE
    return ReasoningMode.OPEN if tail.endswith(start_tag) else ReasoningMode.AUTO


class ReasoningSplitter:
    """Incremental split; deltas add up to the split of the whole text, for every way of cutting it.

    Args:
        mode: see :class:`ReasoningMode`; a plain string is accepted.
        start_tag, end_tag: the delimiters, not empty.

    Raises:
        ConfigurationError: on an unknown mode or an empty tag.
    """

    def __init__(self, mode: ReasoningMode | str, *, start_tag: str = START_TAG, end_tag: str = END_TAG) -> None:
        try:
            self.mode = ReasoningMode(mode)
        except ValueError:
            known = ", ".join(ReasoningMode)
            raise ConfigurationError(f"reasoning mode {mode!r} is unknown; use one of {known}.", param="mode") from None
        if not start_tag or not end_tag:
            raise ConfigurationError("Reasoning delimiters must not be empty.", param="start_tag")
        self._start_tag = start_tag
        self._end_tag = end_tag
        self._phase = _Phase.CONTENT if self.mode is ReasoningMode.NONE else _Phase.BEFORE
        self._held = ""
        self._num_held_newlines = 0
        self._has_reasoning_text = False
        self._num_fed = 0
        self.content_start: int | None = None
        """Offset in the fed text of the answer's first character; None while there is no answer."""
        self.reasoning_start = 0
        """Offset in the fed text of the reasoning's first character, once ``reasoning_end`` is above 0."""
        self.reasoning_end = 0
        """Offset behind the last character of the reasoning that was returned; 0 while there is none."""

    @property
    def num_resolved(self) -> int:
        """Characters fed that are returned or dropped for good; the rest is held."""
        return self._num_fed - len(self._held) - self._num_held_newlines

    @property
    def in_content(self) -> bool:
        """Whether all further text is answer."""
        return self._phase is _Phase.CONTENT

    def feed(self, text: str) -> tuple[str, str]:
        """Add text; return (reasoning, content) that became certain."""
        if not text:
            return "", ""
        self._num_fed += len(text)
        if self._phase is _Phase.CONTENT:
            if self.content_start is None:
                self.content_start = self._num_fed - len(text)
            return "", text
        self._held += text
        return self._run()

    def finish(self) -> tuple[str, str]:
        """End the text; return what was held. A cut tag counts as text of the part it was found in.

        Text fed afterwards is answer, which is also how a caller says that the backend separates the two.
        """
        phase, self._phase = self._phase, _Phase.CONTENT
        held, self._held = self._held, ""
        if phase is _Phase.REASONING or (phase is _Phase.BEFORE and self.mode is ReasoningMode.OPEN):
            reasoning = self._reasoning_text(held, self._num_fed - len(held))
            self._num_held_newlines = 0
            return reasoning, ""
        return "", self._content_text(held)

    def _run(self) -> tuple[str, str]:
        reasoning = ""
        if self._phase is _Phase.BEFORE:
            self._look_for_start()
        if self._phase is _Phase.REASONING:
            reasoning = self._look_for_end()
        if self._phase is _Phase.AFTER_TAG:
            self._held = self._held.lstrip("\n")
            if self._held:
                self._phase = _Phase.CONTENT
        if self._phase is not _Phase.CONTENT:
            return reasoning, ""
        held, self._held = self._held, ""
        return reasoning, self._content_text(held)

    def _look_for_start(self) -> None:
        """In mode open the model may repeat the start tag; it is dropped."""
        stripped = self._held.lstrip()
        if len(self._held) - len(stripped) <= _MAX_LEADING_CHARS:
            if stripped.startswith(self._start_tag):
                self._held = stripped[len(self._start_tag) :]
                self._phase = _Phase.REASONING
                return
            if self._start_tag.startswith(stripped):
                return
        self._phase = _Phase.REASONING if self.mode is ReasoningMode.OPEN else _Phase.CONTENT

    def _look_for_end(self) -> str:
        begin = self._num_fed - len(self._held)
        head, tag, rest = self._held.partition(self._end_tag)
        if tag:
            reasoning = self._reasoning_text(head, begin)
            self._num_held_newlines = 0
            self._held = rest
            self._phase = _Phase.AFTER_TAG
            return reasoning
        num_shown = len(head) - _longest_partial_tag(head, self._end_tag)
        self._held = head[num_shown:]
        return self._reasoning_text(head[:num_shown], begin)

    def _content_text(self, text: str) -> str:
        if text and self.content_start is None:
            self.content_start = self._num_fed - len(text)
        return text

    def _reasoning_text(self, text: str, begin: int) -> str:
        """Drop leading newlines of the reasoning and hold trailing ones, which may turn out to be the end.

        ``begin`` is the offset of ``text`` in all that was fed.
        """
        end = begin + len(text)
        if not self._has_reasoning_text:
            text = text.lstrip("\n")
            self.reasoning_start = end - len(text)
        body = text.rstrip("\n")
        num_trailing = len(text) - len(body)
        if not body:
            self._num_held_newlines += num_trailing
            return ""
        self._has_reasoning_text = True
        self.reasoning_end = end - num_trailing
        shown = "\n" * self._num_held_newlines + body
        self._num_held_newlines = num_trailing
        return shown


def _longest_partial_tag(text: str, tag: str) -> int:
    """Length of the longest end of ``text`` that begins ``tag`` without being all of it."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
