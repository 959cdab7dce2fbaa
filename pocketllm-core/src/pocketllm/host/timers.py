"""When a host has to act without an event: deadlines, graces of cancelled requests, the engine's next heartbeat."""

from __future__ import annotations

import msgspec

from pocketllm.host.record import RequestRecord


class Due(msgspec.Struct):
    """What the clock asks of a host."""

    deadlines: list[RequestRecord] = []
    """Requests to cancel."""
    graces: list[RequestRecord] = []
    """Cancelled requests that the engine has not ended."""
    heartbeat: bool = False


class HostTimers:
    """A request has one timer at a time.

        admitted ──> deadline ──cancelled──> grace ──settled──> none
                         └─────────────settled───────────────────┘

    Times are those of ``time.monotonic()``. The caller holds the host's lock.
    """

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._deadlines: dict[RequestRecord, float] = {}
        self._graces: dict[RequestRecord, float] = {}
        self._heartbeat_at: float | None = None

    def set_deadline(self, record: RequestRecord, at: float) -> None:
        self._deadlines[record] = at

    def start_grace(self, record: RequestRecord, until: float) -> None:
        self._deadlines.pop(record, None)
        self._graces[record] = until

    def forget(self, record: RequestRecord) -> None:
        self._deadlines.pop(record, None)
        self._graces.pop(record, None)

    def start_heartbeat(self, now: float) -> None:
        self._heartbeat_at = now + self._heartbeat_s

    def stop_heartbeat(self) -> None:
        self._heartbeat_at = None

    def next(self) -> float | None:
        """When :meth:`take_due` has something to give; None: never, as things stand."""
        if not self._deadlines and not self._graces:  # as mostly, and this is asked after every drain
            return self._heartbeat_at
        times = [*self._deadlines.values(), *self._graces.values()]
        if self._heartbeat_at is not None:
            times.append(self._heartbeat_at)
        return min(times, default=None)

    def take_due(self, now: float) -> Due:
        """Everything whose time has come; a timer goes off once, and the heartbeat is set again."""
        due = Due(deadlines=_take(self._deadlines, now), graces=_take(self._graces, now))
        if self._heartbeat_at is not None and self._heartbeat_at <= now:
            self.start_heartbeat(now)
            due.heartbeat = True
        return due


def _take(timers: dict[RequestRecord, float], now: float) -> list[RequestRecord]:
    due = [record for record, at in timers.items() if at <= now]
    for record in due:
        del timers[record]
    return due
