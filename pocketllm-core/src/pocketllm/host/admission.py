"""The requests of a host, from admission to their final event."""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING

from pocketllm.errors import BackendUnavailableError, DuplicateRequestError, QueueFullError
from pocketllm.host.record import RequestRecord
from pocketllm.host.staged_call import StagedCall
from pocketllm.types import CancelReason, GenerationRequest

if TYPE_CHECKING:
    from pocketllm.engine.call import GenerateCall
    from pocketllm.host.events import HostEvents
    from pocketllm.host.life import HostLife
    from pocketllm.host.opening import OpenEngine
    from pocketllm.host.pump import ChoiceStream, Routed
    from pocketllm.host.timers import HostTimers
    from pocketllm.prompt.builder import Prepared


class Admission:
    """Admits requests to the open engine and keeps their records while they are active.

        admit ──> hook ──> active ──────────> settled: the last choice ended
                   │          │                  ▲
            raised │          │ cancel           │ the engine's Finish,
                   ▼          ▼                  │ or core's when the grace is over
               withdrawn   cancelled ────────────┘

    Threads: any.

    Args:
        lock: the host's.
        max_active: how many requests may be active.
        cancel_grace_s: how long the engine has to end a cancelled request.
    """

    def __init__(
        self,
        life: HostLife,
        events: HostEvents,
        timers: HostTimers,
        lock: threading.RLock,
        *,
        max_active: int,
        cancel_grace_s: float,
    ) -> None:
        self._life = life
        self._events = events
        self._timers = timers
        self._lock = lock
        self._settled = threading.Condition(lock)
        self._max_active = max_active
        self.cancel_grace_s = cancel_grace_s
        self._records: dict[str, RequestRecord] = {}

    @property
    def num_active(self) -> int:
        return len(self._records)

    def records(self) -> list[RequestRecord]:
        with self._lock:
            return list(self._records.values())

    def submit(self, prepared: Prepared) -> RequestRecord:
        """Admit a request and hand it to the engine; it is active from here to its final event.

        Raises:
            BackendUnavailableError: no engine is ready. QueueFullError: too many active requests.
            DuplicateRequestError: the request_id is active. And whatever the engine or an extension refuses with.
        """
        opened, call, record = self._admit(prepared)
        try:
            opened.hooks.generate(call)
        except BaseException:
            self._withdraw(opened, record)
            raise
        with self._lock:
            if record.cancel_reason is not None and not record.finished:  # cancelled while the hook was running
                self.cancel_record(record, record.cancel_reason)
        self._events.wake()  # the driver's next timer may be earlier now
        return record

    def _admit(self, prepared: Prepared) -> tuple[OpenEngine, GenerateCall, RequestRecord]:
        request = prepared.request
        with self._lock:
            opened = self._life.ready_engine()
            self._check_room(request)
            record = RequestRecord(request, self._lock, self._abandoned)
            self._records[request.request_id] = record
            if request.deadline_s is not None:
                self._timers.set_deadline(record, record.accepted_at + request.deadline_s)
        register = functools.partial(self._register, opened)
        call = StagedCall(prepared, record, opened.prompts, emit=self._events.post_answer, register=register)
        return opened, call, record

    def _check_room(self, request: GenerationRequest) -> None:
        if request.request_id in self._records:
            raise DuplicateRequestError(
                f"request_id {request.request_id!r} is already active: wait for it, cancel it, or use another id.",
                param="request_id",
            )
        if len(self._records) >= self._max_active:
            raise QueueFullError(
                f"{len(self._records)} requests are active, which is the limit (max_num_requests): try again later."
            )

    def _register(self, opened: OpenEngine, streams: list[ChoiceStream]) -> None:
        """From here on events of these choices are routed; called when their request's call is sealed."""
        with self._lock:
            if self._life.engine is not opened:
                raise BackendUnavailableError("The engine was lost while it took this request: try again.")
            opened.pump.register(streams)

    def _withdraw(self, opened: OpenEngine, record: RequestRecord) -> None:
        """The hook raised: the engine may run the request all the same, so cancel it and ignore its late events."""
        with self._lock:
            handles = opened.pump.forget(record) or [choice.handle for choice in record.request.choices]
            self._forget(record)
        for handle in handles:
            opened.hooks.cancel(handle, CancelReason.PLUGIN)

    def cancel(self, cancelled_id: str, reason: CancelReason) -> bool:
        """Ask for the end, at the next step boundary, of the request or of all requests of the call with this id.

        False when nothing of it is active, or when it was cancelled before.
        """
        with self._lock:
            records = [
                record
                for record in self._records.values()
                if cancelled_id in (record.request_id, record.call_id) and record.cancel_reason is None
            ]
            for record in records:
                self.cancel_record(record, reason)
            return bool(records)

    def cancel_all(self, reason: CancelReason) -> int:
        """Cancel every active request; returns how many."""
        with self._lock:
            records = [record for record in self._records.values() if record.cancel_reason is None]
            for record in records:
                self.cancel_record(record, reason)
            return len(records)

    def cancel_record(self, record: RequestRecord, reason: CancelReason) -> None:
        """Ask the engine for the end of one request; the first reason stays. Lock held."""
        record.cancel_reason = record.cancel_reason or reason
        opened = self._life.engine
        if opened is None:
            return
        self._timers.start_grace(record, time.monotonic() + self.cancel_grace_s)
        for handle in opened.pump.unfinished_handles(record):
            opened.hooks.cancel(handle, reason)
        self._events.wake()

    def _abandoned(self, record: RequestRecord) -> None:
        if record.request_id in self._records:
            self.cancel_record(record, CancelReason.DISCONNECTED)

    def settle(self, routed: Routed, opened: OpenEngine) -> None:
        """Act on what a drain gave: cancel what has ended early, forget what has ended. Lock held."""
        for handle, reason in routed.cancels:
            opened.hooks.cancel(handle, reason)
        for record in routed.finished:
            self._forget(record)
            self._settled.notify_all()

    def _forget(self, record: RequestRecord) -> None:
        self._records.pop(record.request_id, None)
        self._timers.forget(record)

    def wait_idle(self, timeout_s: float) -> bool:
        """Block until no request is active; False when time ran out. Another thread must drain events meanwhile."""
        with self._settled:
            return self._settled.wait_for(lambda: not self._records, timeout_s)
