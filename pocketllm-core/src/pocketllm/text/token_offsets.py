"""Which tokens a text is made of, by where the text of each token begins."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable


class TokenOffsets:
    """Counts the tokens of one choice as its text becomes certain.

        num_fed        every token before the end, those after a stop that was not yet found included
        num_used       those that the answer is charged with: up to the token that completed a stop string
        num_in_text    those whose text begins in what was returned, reasoning, tags and layout included
        num_reasoning  those whose text, or a part of it, went to the reasoning; tags do not count

    Log-probability entries go up to ``num_in_text``: with a delta while streaming, and cut there at the end. A token
    that a stop string cuts in two is in the text. One that begins at or after the match is not. Stages are not seen.

    Offsets never decrease. Those in front of the text already returned are not asked for again and are dropped in bulk.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []  # without the first _num_dropped
        self._num_dropped = 0
        self.num_used = 0
        self.num_in_text = 0
        self.num_reasoning = 0
        self._reasoning_end = 0  # of the reasoning that was counted
        self._first_reasoning = 0  # number of the token that the reasoning begins in
        self.add: Callable[[int], None] = self._starts.append
        """Add a token by the offset where its text begins."""

    def add_together(self, start: int, num_tokens: int) -> None:
        """Add tokens whose text a backend brought as one piece."""
        self._starts.extend([start] * num_tokens)

    @property
    def num_fed(self) -> int:
        return self._num_dropped + len(self._starts)

    def advance(self, *, used_to: int | None, covered_to: int | None) -> int:
        """Count tokens that begin at or before ``used_to`` as used and those that begin before ``covered_to`` as in the
        text; None: all. Neither ever goes back. Returns the growth of the used ones."""
        num_covered = len(self._starts) if covered_to is None else bisect_left(self._starts, covered_to)
        num_used = self.num_fed if used_to is None else self._num_dropped + bisect_right(self._starts, used_to)
        self.num_in_text = self._num_dropped + num_covered
        self._drop(num_covered)
        growth = num_used - self.num_used
        self.num_used = num_used
        return growth

    def advance_all(self, text_end: int, *, is_last: bool) -> int:
        """:meth:`advance` while nothing is held: every token is used, and in the text once it has any.

        ``text_end`` is the raw offset behind everything that was returned.
        """
        # Once for every token of every stream, so it calls as little as it can.
        starts = self._starts
        num_fed = self._num_dropped + len(starts)
        if is_last or (starts and starts[-1] < text_end):
            self._num_dropped = self.num_in_text = num_fed
            starts.clear()
        else:
            num_covered = bisect_left(starts, text_end)
            self.num_in_text = self._num_dropped + num_covered
            self._drop(num_covered)
        growth = num_fed - self.num_used
        self.num_used = num_fed
        return growth

    def count_reasoning(self, start: int, end: int, text_end: int) -> None:
        """The reasoning returned so far goes from ``start`` to ``end``; to be called before its offsets are dropped."""
        if end == self._reasoning_end:
            return
        if not self._reasoning_end:
            first = bisect_left(self._starts, start)
            # The token before may reach into the reasoning, as one that holds the end of the tag does.
            next_start = self._starts[first] if first < len(self._starts) else text_end
            self._first_reasoning = self._num_dropped + first - (first > 0 and next_start > start)
        self._reasoning_end = end
        self.num_reasoning = self._num_dropped + bisect_left(self._starts, end) - self._first_reasoning

    def _drop(self, num_covered: int) -> None:
        if num_covered > 64 and num_covered * 2 > len(self._starts):
            del self._starts[:num_covered]
            self._num_dropped += num_covered
