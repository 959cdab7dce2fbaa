"""Drains an engine's events on one thread, remembers them all, and acts on a sequence at an exact row."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterable

from pocketllm.hookspecs import EventSource
from pocketllm.testing.stream_rules import check_batch
from pocketllm.types import Finish, StepBatch

POLL_MS = 20


class Recorder:
    """Everything an engine has posted since it was opened.

    Threads: any; the source is drained under one lock, so :meth:`drain_now` may be called from any thread too.
    """

    def __init__(self, events: EventSource) -> None:
        self._events = events
        self._draining = threading.RLock()
        self._changed = threading.Condition()
        self._batches: list[StepBatch] = []
        self._num_rows: dict[int, int] = {}
        self._finishes: dict[int, Finish] = {}
        self._actions: dict[int, tuple[int, Callable[[], None]]] = {}
        self._stopping = False
        self.fatal: str | None = None
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kit-recorder", daemon=True)
        self._thread.start()

    def batches(self, since: int = 0) -> list[StepBatch]:
        with self._changed:
            return self._batches[since:]

    @property
    def num_batches(self) -> int:
        return len(self._batches)

    def num_rows(self, handle: int) -> int:
        return self._num_rows.get(handle, 0)

    def finish(self, handle: int) -> Finish | None:
        return self._finishes.get(handle)

    def at_row(self, handle: int, num_rows: int, action: Callable[[], None]) -> None:
        """Call ``action`` on the recording thread as soon as the sequence has ``num_rows`` rows."""
        with self._changed:
            self._actions[handle] = (num_rows, action)

    def wait(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``done()``, which is asked after every change; False when the time is over."""
        give_up_at = time.monotonic() + timeout_s
        with self._changed:
            while not done():
                left_s = give_up_at - time.monotonic()
                if left_s <= 0 or self.failure is not None:
                    return done()
                self._changed.wait(min(left_s, 0.05))
        return True

    def drain_now(self) -> int:
        """Take what is waiting and return the number of batches so far."""
        with self._draining:
            self._take(self._events.drain())
            return self.num_batches

    def is_readable(self) -> bool:
        """Whether the source says now that something waits."""
        poller = select.poll()
        poller.register(self._events.fileno(), select.POLLIN)
        return bool(poller.poll(0))

    def stop(self) -> None:
        """End the thread and take what is left. The source is still open."""
        self._stopping = True
        self._thread.join(10)
        self.drain_now()

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._events.fileno(), select.POLLIN)
        while not self._stopping:
            try:
                if poller.poll(POLL_MS):
                    self.drain_now()
            except Exception as exc:  # noqa: BLE001  # a foreign event source; those who wait for events are told
                self.failure = exc
                return

    def _take(self, batches: Iterable[StepBatch]) -> None:
        due: list[Callable[[], None]] = []
        with self._changed:
            for batch in batches:
                self._batches.append(batch)
                if batch.fatal is not None:
                    self.fatal = batch.fatal
                if any(check_batch(batch)):
                    continue  # malformed: check_stream reports it
                for handle in batch.handles:
                    self._num_rows[handle] = self._num_rows.get(handle, 0) + 1
                for finish in batch.finished:
                    self._finishes.setdefault(finish.handle, finish)
                due += self._due(batch)
            self._changed.notify_all()
        for action in due:
            action()

    def _due(self, batch: StepBatch) -> list[Callable[[], None]]:
        due = []
        for handle in {*batch.handles} & {*self._actions}:
            num_rows, action = self._actions[handle]
            if self._num_rows[handle] >= num_rows:
                del self._actions[handle]
                due.append(action)
        return due
