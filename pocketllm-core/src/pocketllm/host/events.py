"""What a host waits for: one descriptor for the engine's events, extensions' answers and wakes."""

from __future__ import annotations

import selectors

from pocketllm.engine.outbox import Outbox, Wake
from pocketllm.hookspecs import EventSource
from pocketllm.types import StepBatch


class HostEvents:
    """Three sources behind one descriptor.

        the engine's events ──┐
        answers of extensions ┼──> fileno() readable ──> the driver drains
        wake() ───────────────┘

    Threads: :meth:`post_answer` and :meth:`wake` from any; everything else under the host's lock.
    """

    def __init__(self) -> None:
        self._wake = Wake()
        self._answers = Outbox()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._selector.register(self._answers, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Readable while something waits (epoll and kqueue descriptors can themselves be waited for)."""
        return self._selector.fileno()

    def wake(self) -> None:
        """Make :meth:`fileno` readable once, so that a waiting driver looks again."""
        self._wake.set()

    def post_answer(self, batch: StepBatch) -> None:
        """Events that an extension emits in the engine's place."""
        self._answers.post(batch)

    def watch(self, source: EventSource) -> None:
        """Wait for the events of an engine that has opened."""
        self._selector.register(source, selectors.EVENT_READ)

    def unwatch(self, source: EventSource) -> None:
        self._selector.unregister(source)

    def take_answers(self) -> list[StepBatch]:
        """Note the wake and take what extensions have posted."""
        if self._wake.is_set:
            self._wake.clear()
        return self._answers.drain()

    def close(self) -> None:
        """Free the descriptors; the driver must have stopped."""
        self._selector.close()
        self._wake.close()
        self._answers.close()
