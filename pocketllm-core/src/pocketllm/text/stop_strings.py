"""Stop sequences on text that arrives in pieces.

The first occurrence ends the text: the match with the smallest start, and of those the one that completes first. The
answer depends on the whole text only, never on how it was cut into calls.

Sans-IO. An instance follows one text and belongs to one thread.
"""

from __future__ import annotations

import copy
import re
from collections import deque
from collections.abc import Iterable


def find_first_stop(text: str, stops: Iterable[str]) -> tuple[int, int] | None:
    """The plain reference: (start, end) of the winning match in a whole text, or None. Empty sequences never match."""
    matches = [(text.find(stop), text.find(stop) + len(stop)) for stop in stops if stop and stop in text]
    return min(matches, default=None)


class StopStrings:
    """Finds the first of several sequences in a text (Aho and Corasick's automaton, CACM 18(6), 1975).

    Text is held back only while it is the beginning of a sequence, so never more than the longest sequence less one
    character. A shorter sequence that completes inside a longer one still in progress waits for it, since the longer
    one began earlier; the wait ends with the next character that does not fit, or with :meth:`finish`.

    Time is linear in the text, whatever the cuts. Building is linear in the sequences.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = [stop for stop in dict.fromkeys(stops) if stop]
        self._children: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self._depth = [0]
        self._prefix_of = [0]  # a sequence whose first _depth characters lead to the node
        self._match_length = [0]  # longest sequence that ends at the node, 0 for none
        self._build()
        firsts = "".join(sorted({stop[0] for stop in self._stops}))
        self._first_char = re.compile(f"[{re.escape(firsts)}]") if firsts else None
        self._node = 0
        self._num_fed = 0
        self._candidate: tuple[int, int] | None = None
        self._winner: str | None = None
        self._matched = False
        self._finished = False

    def fork(self) -> StopStrings:
        """Another of these for a text of its own; the automaton is shared. Only before anything was fed."""
        assert self._num_fed == 0
        return copy.copy(self)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to find: all text passes at once."""
        return self._first_char is None

    @property
    def matched(self) -> bool:
        """Whether a sequence has ended the text."""
        return self._matched

    @property
    def match(self) -> tuple[int, int] | None:
        """(start, end) of the match in the whole text, in characters; while undecided, of the best one so far."""
        return self._candidate

    @property
    def winner(self) -> str | None:
        """The sequence that ended the text, once one has."""
        return self._winner if self._matched else None

    @property
    def num_held(self) -> int:
        """Characters fed and neither returned nor dropped."""
        return 0 if self._matched or self._finished else self._depth[self._node]

    def feed(self, text: str) -> tuple[str, bool]:
        """Add text; return (text now certain to be in the answer, whether a sequence has matched).

        After a match everything is ignored.
        """
        if self._matched:
            return "", True
        if self._first_char is None or not text:
            return text, False
        held_node = self._node
        base = self._num_fed
        self._num_fed += len(text)
        if self._scan(text, base):
            assert self._candidate is not None
            end = self._candidate[0]
        else:
            end = self._num_fed - self._depth[self._node]
        return self._slice(held_node, text, base, end), self._matched

    def finish(self) -> str:
        """End the text; return what was held and is part of the answer. ``matched`` is final afterwards."""
        if self._matched or self._finished:
            return ""
        self._finished = True
        held = self._prefix(self._node)
        if self._candidate is None:
            return held
        self._matched = True
        return held[: len(held) - (self._num_fed - self._candidate[0])]

    def _scan(self, text: str, base: int) -> bool:
        """Run the automaton over ``text``; True when the winner is certain."""
        assert self._first_char is not None
        node = self._node
        index = 0
        while index < len(text):
            if node == 0:
                found = self._first_char.search(text, index)
                if found is None:
                    break
                index = found.start()
            char = text[index]
            while node and char not in self._children[node]:
                node = self._fallback[node]
            node = self._children[node].get(char, 0)
            index += 1
            end = base + index
            length = self._match_length[node]
            if length and (self._candidate is None or end - length < self._candidate[0]):
                self._candidate = (end - length, end)
                self._winner = self._prefix(node)[-length:]
            if self._candidate is not None and end - self._depth[node] >= self._candidate[0]:
                self._matched = True
                return True
        self._node = node
        return False

    def _slice(self, held_node: int, text: str, base: int, end: int) -> str:
        """Characters from the first held one up to offset ``end``, building no more of the held text than returned."""
        num_held = self._depth[held_node]
        count = end - (base - num_held)
        if count <= num_held:
            return self._stops[self._prefix_of[held_node]][:count] if count > 0 else ""
        return self._prefix(held_node) + text[: count - num_held]

    def _prefix(self, node: int) -> str:
        return self._stops[self._prefix_of[node]][: self._depth[node]] if node else ""

    def _build(self) -> None:
        for number, stop in enumerate(self._stops):
            node = 0
            for depth, char in enumerate(stop, start=1):
                child = self._children[node].get(char)
                if child is None:
                    child = len(self._children)
                    self._children[node][char] = child
                    self._children.append({})
                    self._fallback.append(0)
                    self._depth.append(depth)
                    self._prefix_of.append(number)
                    self._match_length.append(0)
                node = child
            self._match_length[node] = len(stop)
        # Breadth first, so that the fallback of a node, being shallower, is complete when it is needed.
        queue = deque(self._children[0].values())
        while queue:
            node = queue.popleft()
            for char, child in self._children[node].items():
                fallback = self._fallback[node]
                while fallback and char not in self._children[fallback]:
                    fallback = self._fallback[fallback]
                self._fallback[child] = self._children[fallback].get(char, 0)
                self._match_length[child] = self._match_length[child] or self._match_length[self._fallback[child]]
                queue.append(child)
