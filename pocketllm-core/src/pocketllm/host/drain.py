"""One turn of a host: events are routed, what is due is acted on, and a broken engine is parted with."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from pocketllm.errors import EngineError
from pocketllm.host.opening import OpenEngine, close_events, retire
from pocketllm.host.state import HostState
from pocketllm.types import CancelReason, FinishReason

if TYPE_CHECKING:
    from pocketllm.host.admission import Admission
    from pocketllm.host.events import HostEvents
    from pocketllm.host.life import HostLife
    from pocketllm.host.record import RequestRecord
    from pocketllm.host.timers import HostTimers

logger = logging.getLogger("pocketllm.engine")

MAX_LOGGED_CHARS = 2000


class EventDrain:
    """What comes out of the engine, and what its silence means.

        engine's events ─┐                  ┌─> admission: cancel, forget what has ended
        answers ─────────┼──> pump ──> logs ┤
        timers ──────────┘                  └─> engine broken: end its requests ──> life: FAILED, reopen

    Threads: the caller holds the host's lock, but for :meth:`close_engine`.
    """

    def __init__(
        self,
        life: HostLife,
        admission: Admission,
        events: HostEvents,
        timers: HostTimers,
        lock: threading.RLock,
        *,
        name: str,
    ) -> None:
        self._life = life
        self._admission = admission
        self._events = events
        self._timers = timers
        self._lock = lock
        self._name = name

    def run(self) -> None:
        """Route everything that waits and act on what is due."""
        # No source blocks, and asking which of them is ready would cost more than looking into each.
        answers = self._events.take_answers()
        opened = self._life.engine
        if opened is not None:
            if answers:
                self._admission.settle(opened.pump.route(answers), opened)
            self._route(opened)
        self._act_on_timers()

    def _route(self, opened: OpenEngine) -> None:
        try:
            routed = opened.pump.route(opened.hooks.engine.events.drain())
        except Exception as error:  # a malformed batch, a broken source, a frame cut off by a dying child
            logger.exception("events cannot be read")
            self.lose(opened, f"The engine's events cannot be read: {error!r}.")
            return
        self._admission.settle(routed, opened)
        if routed.fatal is not None:
            self.lose(opened, routed.fatal)

    def _act_on_timers(self) -> None:
        if self._timers.next() is None:
            return
        due = self._timers.take_due(time.monotonic())
        for record in due.deadlines:
            self._admission.cancel_record(record, CancelReason.DEADLINE)
        for record in due.graces:
            self._give_up_waiting(record)
        opened = self._life.engine
        if due.heartbeat and opened is not None:
            reason = opened.hooks.heartbeat()
            if reason is not None:
                self.lose(opened, reason)

    def _give_up_waiting(self, record: RequestRecord) -> None:
        """An engine that ends no cancelled request ends none of the others."""
        opened = self._life.engine
        if opened is None:
            return
        self._end([record], opened, FinishReason.CANCELLED)
        self.lose(
            opened,
            f"The engine did not end the cancelled request {record.request_id} within "
            f"{self._admission.cancel_grace_s:g} s: it hangs.",
        )

    def lose(self, opened: OpenEngine, reason: str) -> None:
        """The engine is broken: end its requests truthfully, say FAILED, and reopen within the limits."""
        if self._life.engine is not opened:
            return
        records = self._admission.records()
        ended = ", ".join(record.request_id for record in records) or "none"
        logger.error("engine of %r failed: %s It ends these requests: %s", self._name, reason, ended[:MAX_LOGGED_CHARS])
        self._life.part(EngineError(reason))
        self._end(records, opened, FinishReason.ERROR, reason)
        if self._life.state is HostState.CLOSED:
            return  # close_engine() frees it
        threading.Thread(target=retire, args=(opened,), name="pocketllm-retire", daemon=True).start()
        self._life.reopen()

    def close_engine(self, opened: OpenEngine, deadline_s: float) -> None:
        """Close the engine of a CLOSED host and end what it leaves; another thread may keep draining meanwhile."""
        opened.hooks.close(deadline_s)
        with self._lock:
            if self._life.engine is opened:
                self._route(opened)  # the finals that the engine posted while it closed
                self._end(self._admission.records(), opened, FinishReason.CANCELLED)
            if self._life.engine is opened:  # its last events may have said that it is broken
                self._life.part()
        close_events(opened.hooks.engine)

    def _end(
        self, records: list[RequestRecord], opened: OpenEngine, reason: FinishReason, error: str | None = None
    ) -> None:
        """End requests from core's side."""
        self._admission.settle(opened.pump.end(records, reason, error), opened)
