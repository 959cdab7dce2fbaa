"""The text of one choice: tokens in, deltas of answer and reasoning out.

One state machine for every backend, streamed or not::

    token ids -> Detokenizer -> ReasoningSplitter -> StopStrings (answer only) -> text stages -> tool calls -> TextDelta

Any way of cutting the same tokens into calls gives the same total text, the same stop and the same counts. Sans-IO. An
instance belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from pocketllm.errors import UnsupportedFeatureError
from pocketllm.stages import TextStage
from pocketllm.text.detokenizer import Detokenizer, TextTokenizer
from pocketllm.text.reasoning import END_TAG, START_TAG, ReasoningMode, ReasoningSplitter
from pocketllm.text.stop_strings import StopStrings
from pocketllm.text.token_offsets import TokenOffsets
from pocketllm.text.tool_calls.base import CallDelta, ToolCallStream


class TextDelta(msgspec.Struct, frozen=True):
    """What one call added. ``stopped`` stays True once a stop string has ended the answer."""

    content: str = ""
    reasoning: str = ""
    num_tokens_used: int = 0
    stopped: bool = False
    calls: tuple[CallDelta, ...] = ()

    def __repr__(self) -> str:
        return (
            f"TextDelta(num_content_chars={len(self.content)}, num_reasoning_chars={len(self.reasoning)}, "
            f"num_tokens_used={self.num_tokens_used}, stopped={self.stopped}, num_call_deltas={len(self.calls)})"
        )


class ChoiceText:
    """State of one choice.

    ``num_tokens_used`` of all deltas, that of :meth:`finish` included, adds up to the number of tokens fed, or, when a
    stop string ended the answer, up to and including the token that completed it. A token is counted by the delta that
    makes this certain: nearly always its own, later while text that may hold the stop is held back.

    Args:
        tokenizer: None when the backend brings text alone; :meth:`feed` then raises.
        stop: stop strings, empty ones are ignored; or an automaton of them, to share between choices.
        reasoning_mode: how the completion begins, see :func:`pocketllm.text.reasoning.detect_mode`.
        stages: applied to the answer in this order, after stop strings. What a stage raises passes through as it is.
        skip_special: drop control tokens from the text, but for ``kept_ids``.
        start_tag, end_tag: reasoning delimiters.
        tool_calls: takes the calls out of the answer, after stop strings and stages; None leaves them in it.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer | None,
        *,
        stop: Iterable[str] | StopStrings = (),
        reasoning_mode: ReasoningMode | str = ReasoningMode.NONE,
        stages: Sequence[TextStage] = (),
        skip_special: bool = True,
        kept_ids: Collection[int] = (),
        start_tag: str = START_TAG,
        end_tag: str = END_TAG,
        tool_calls: ToolCallStream | None = None,
    ) -> None:
        self._detokenizer = (
            None if tokenizer is None else Detokenizer(tokenizer, skip_special=skip_special, kept_ids=kept_ids)
        )
        self._splitter = ReasoningSplitter(reasoning_mode, start_tag=start_tag, end_tag=end_tag)
        self._stops = stop.fork() if isinstance(stop, StopStrings) else StopStrings(stop)
        self._stages = tuple(stages)
        self._tool_calls = tool_calls
        # Whether anything could ever hold back or change the answer, and whether from here on nothing can.
        self._is_plain = self._stops.is_empty and not self._stages and tool_calls is None
        self._passes = self._is_plain and self._splitter.in_content
        self._num_raw = 0  # characters given to the splitter
        self.offsets = TokenOffsets()  # into those; others read its counts
        self._stopped = False
        self._finished = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the answer."""
        return self._stopped

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that has ended the answer."""
        return self._stops.winner

    @property
    def calls_complete(self) -> bool:
        """After the end: whether the answer made tool calls, all of them whole; see :class:`ToolCallStream`."""
        return self._tool_calls is not None and self._tool_calls.calls_complete

    def feed(self, token_ids: Sequence[int]) -> TextDelta:
        """Add tokens the engine produced, in order; ids that carry no text (stop ids) are the caller's to leave out."""
        if self._stopped or self._finished:
            return TextDelta(stopped=self._stopped)
        if self._detokenizer is None:
            raise UnsupportedFeatureError("This choice has no tokenizer: the backend has to bring text, not token ids.")
        detokenizer = self._detokenizer
        offset = self._num_raw - detokenizer.num_chars
        add_offset = self.offsets.add
        pieces = []
        for token_id in token_ids:
            pieces.append(detokenizer.feed_one(token_id))
            add_offset(offset + detokenizer.last_token_start)
        text = "".join(pieces)
        if not self._passes:
            return self._advance(text)
        self._num_raw += len(text)
        self._splitter.feed(text)
        return TextDelta(text, "", self.offsets.advance_all(self._num_raw, is_last=False))

    def feed_text(self, content: str = "", reasoning: str = "", *, num_tokens: int = 0) -> TextDelta:
        """Add text that the backend brings; ``num_tokens`` says how many tokens it stands for.

        The same stop rules hold. ``content`` is split like decoded text, unless the backend separates the two: its
        first ``reasoning``, which is forwarded as it is, makes all content answer.
        """
        if self._stopped or self._finished:
            return TextDelta(stopped=self._stopped)
        self.offsets.add_together(self._num_raw, num_tokens)
        held_reasoning, held_content = self._splitter.finish() if reasoning else ("", "")
        return self._advance(content, reasoning=held_reasoning + reasoning, content=held_content)

    def finish(self) -> TextDelta:
        """End the choice: return all that was held. Later calls return an empty delta."""
        if self._stopped or self._finished:
            return TextDelta(stopped=self._stopped)
        text = self._detokenizer.finish() if self._detokenizer is not None else ""
        return self._advance(text, is_last=True)

    def _advance(self, text: str, *, reasoning: str = "", content: str = "", is_last: bool = False) -> TextDelta:
        self._num_raw += len(text)
        new_reasoning, new_content = self._splitter.feed(text)
        reasoning += new_reasoning
        content += new_content
        if is_last:
            new_reasoning, new_content = self._splitter.finish()
            reasoning += new_reasoning
            content += new_content
        content, self._stopped = self._stops.feed(content)
        if is_last and not self._stopped:
            content += self._stops.finish()
            self._stopped = self._stops.matched
            self._finished = True
        self.offsets.count_reasoning(self._splitter.reasoning_start, self._splitter.reasoning_end, self._num_raw)
        num_used = self._count(is_last)
        self._passes = self._is_plain and self._splitter.in_content
        is_end = self._stopped or self._finished
        content = self._through_stages(content, is_last=is_end)
        if self._tool_calls is None:
            return TextDelta(content, reasoning, num_used, self._stopped)
        content, calls = self._without_calls(self._tool_calls, content, is_last=is_end)
        return TextDelta(content, reasoning, num_used, self._stopped, calls)

    def _count(self, is_last: bool) -> int:
        """Move the counts forward to what has become certain; return the growth of the used one."""
        match, num_held = self._stops.match, self._stops.num_held
        num_resolved = self._splitter.num_resolved
        if match is None and num_resolved == self._num_raw and not num_held:
            return self.offsets.advance_all(self._num_raw, is_last=is_last)
        content_start = self._splitter.content_start or 0
        # A match still to come ends after all that was searched, so tokens beginning there at the latest count.
        used_to: int | None = num_resolved
        covered_to: int | None = num_resolved - num_held
        if is_last:
            used_to = covered_to = None
        if match is not None:
            # The token that completed the match is the last to begin before its end.
            used_to = content_start + match[1] - 1
            covered_to = content_start + match[0] if self._stopped else covered_to
        return self.offsets.advance(used_to=used_to, covered_to=covered_to)

    def _through_stages(self, content: str, *, is_last: bool) -> str:
        for stage in self._stages:
            if content:
                content = stage.feed(content)
            if is_last:
                content += stage.finish()
        return content

    @staticmethod
    def _without_calls(stream: ToolCallStream, content: str, *, is_last: bool) -> tuple[str, tuple[CallDelta, ...]]:
        delta = stream.feed(content)
        if not is_last:
            return delta.content, delta.calls
        last = stream.finish()
        return delta.content + last.content, delta.calls + last.calls
