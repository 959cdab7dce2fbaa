"""The slot an engine lives in.

Everything binds to the slot, never to an engine: the engine may be absent, replaced after a crash, in this process or
in a child.
"""

from __future__ import annotations

import functools
import logging
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pocketllm.engine.call import GenerateCall
from pocketllm.engine.outbox import Outbox, Wake
from pocketllm.errors import (
    BackendUnavailableError,
    DuplicateRequestError,
    EngineError,
    PocketLLMError,
    QueueFullError,
)
from pocketllm.fields.requests import check_request
from pocketllm.host.closing import close_at_exit
from pocketllm.host.opening import OpenEngine, close_events, open_engine, retire
from pocketllm.host.pump import ChoiceStream, Routed
from pocketllm.host.record import RequestRecord
from pocketllm.host.staged_call import StagedCall
from pocketllm.host.state import HostLimits, HostState
from pocketllm.prompt.builder import Prepared, PromptBuilder
from pocketllm.protocol import PART_MARK
from pocketllm.types import (
    CancelReason,
    Capabilities,
    EngineStats,
    FinishReason,
    GenerationRequest,
    HealthStatus,
    ModelSource,
)

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint, Tokenizer
    from pocketllm.engine_args import EngineArgs
    from pocketllm.plugins.registry import Registry
    from pocketllm.plugins.selection import Selection

logger = logging.getLogger("pocketllm.engine")

MAX_LOGGED_CHARS = 2000


class EngineHost:
    """A named slot: opens, watches, reopens and closes its engine, admits requests and routes its events.

    Whoever owns the host waits until :meth:`fileno` is readable or :meth:`next_timer` is due and then calls
    :meth:`drain_events` (a thread for ``LLM``, the event loop for ``AsyncLLM``). All other methods may be called from
    any thread.
    """

    def __init__(
        self,
        args: EngineArgs,
        *,
        registry: Registry | None = None,
        placement: str = "thread",
        name: str = "default",
        limits: HostLimits | None = None,
        on_progress: Callable[[str, float], None] | None = None,
    ) -> None:
        from pocketllm.plugins.registry import get_registry

        self.args = args
        self.name = name
        self.limits = limits or HostLimits()
        self.selection: Selection | None = None
        self.model_source: ModelSource | None = None
        self.checkpoint: Checkpoint | None = None
        self._registry = registry or get_registry()
        self._placement = args.placement if args.placement != "auto" else placement
        self._on_progress = on_progress
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._listeners: list[Callable[[], None]] = []
        self._state = HostState.LOADING
        self._state_changed = False
        self._epoch = 0
        self._failure: PocketLLMError | None = None
        self._failed_at: deque[float] = deque()
        self._progress = ("", 0.0)
        self._open: OpenEngine | None = None
        self._records: dict[str, RequestRecord] = {}
        self._timers: dict[str, float] = {}  # request id -> when its deadline or its cancel's grace is over
        self._heartbeat_at: float | None = None
        self._wake = Wake()
        self._answers = Outbox()  # events that extensions emit in the engine's place
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._selector.register(self._answers, selectors.EVENT_READ)
        self._loader: threading.Thread | None = None

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> HostState:
        return self._state

    @property
    def epoch(self) -> int:
        """Counts engines opened in this slot; a response of an older epoch can be told apart."""
        return self._epoch

    @property
    def failure(self) -> PocketLLMError | None:
        """Why the slot is FAILED, or why its last engine was lost; None after a good open."""
        return self._failure

    @property
    def progress(self) -> tuple[str, float]:
        return self._progress

    @property
    def capabilities(self) -> Capabilities:
        return self._ready_engine().capabilities

    @property
    def tokenizer(self) -> Tokenizer:
        return self._ready_engine().prompts.tokenizer

    @property
    def prompts(self) -> PromptBuilder:
        return self._ready_engine().prompts

    @property
    def num_active(self) -> int:
        return len(self._records)

    def active_request_ids(self) -> list[str]:
        with self._lock:
            return list(self._records)

    def health(self) -> HealthStatus:
        stage, fraction = self._progress
        details: dict[str, object] = {"epoch": self._epoch, "slot": self.name}
        message = ""
        if self._state is HostState.LOADING:
            message = f"loading: {stage or 'starting'} ({fraction:.0%})"
        if self._failure is not None:
            details["last_failure"] = self._failure.message
            if self._state is HostState.FAILED:
                message = self._failure.message
        return HealthStatus(
            status=self._state.value,
            backend=self.selection.backend.name if self.selection is not None else None,
            ready=self._state is HostState.READY,
            message=message,
            details=details,
        )

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` from the pump's side after each change of state."""
        self._listeners.append(listener)

    # -- opening --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin loading in the background; returns at once."""
        with self._lock:
            if self._loader is None:
                close_at_exit(self)
                self._loader = threading.Thread(target=self._load, name=f"pocketllm-load-{self.name}", daemon=True)
                self._loader.start()

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Block until READY.

        Raises:
            PocketLLMError: the load failed, with its own error; BackendUnavailableError when closed or out of time.
        """
        with self._changed:
            done = self._changed.wait_for(lambda: self._state is not HostState.LOADING, timeout_s)
            if not done:
                raise BackendUnavailableError(f"The model is still loading after {timeout_s} s: {self._progress[0]}.")
            self.check_ready()

    def check_ready(self) -> None:
        """Raise why the slot is not READY: a failed first load with its own error."""
        if self._state is HostState.FAILED and self._epoch == 0 and self._failure is not None:
            raise self._failure
        self._ready_engine()

    def _load(self) -> None:
        try:
            opened = open_engine(
                self.args,
                self._registry,
                placement=self._placement,
                limits=self.limits,
                epoch=self._epoch + 1,
                selected=self._selected,
                report=self._report,
                aborted=lambda: self._state is HostState.CLOSED,
            )
        except BaseException as error:  # a runtime may raise anything, SystemExit too: the slot must say so
            logger.debug("load failed", exc_info=True)
            failure = error if isinstance(error, PocketLLMError) else EngineError(f"Loading failed: {error!r}")
            self._load_failed(failure)
            return
        with self._changed:
            wanted = self._state is HostState.LOADING
            if wanted:
                self._selector.register(opened.hooks.engine.events, selectors.EVENT_READ)
                self._epoch = opened.epoch
                self._open = opened
                self._failure = None
                if hasattr(opened.hooks.engine, "check"):
                    self._heartbeat_at = time.monotonic() + self.limits.heartbeat_s
                self._set_state(HostState.READY)
        if not wanted:  # closed or drained while it was loading
            retire(opened)

    def _selected(self, selection: Selection, checkpoint: Checkpoint, source: ModelSource) -> None:
        self.selection, self.checkpoint, self.model_source = selection, checkpoint, source

    def _report(self, stage: str, fraction: float) -> None:
        self._progress = (stage, fraction)
        if self._on_progress is not None:
            self._on_progress(stage, fraction)

    def _load_failed(self, failure: PocketLLMError) -> None:
        with self._changed:
            self._failure = failure
            self._loader = None
            if self._state is not HostState.LOADING:
                return  # closed or drained while it was loading
            was_open = self._epoch > 0
            self._set_state(HostState.FAILED)
            if was_open:  # a slot that worked before is tried again; a first load that fails is the person's to mend
                self._plan_restart()

    # -- failure --------------------------------------------------------------------------------------------------

    def _engine_failed(self, opened: OpenEngine, reason: str) -> None:
        """The engine is broken: end its requests truthfully, say FAILED, and reopen within the limit. Lock held."""
        if self._open is not opened:
            return
        ended = ", ".join(self._records) or "none"
        logger.error(
            "engine of slot %r failed: %s It ends these requests: %s", self.name, reason, ended[:MAX_LOGGED_CHARS]
        )
        self._open = None
        self._heartbeat_at = None
        self._selector.unregister(opened.hooks.engine.events)
        self._failure = EngineError(reason)
        records = list(self._records.values())
        self._after(opened.pump.end(records, FinishReason.ERROR, reason), opened)
        if self._state is HostState.CLOSED:
            return  # close() frees it
        threading.Thread(target=retire, args=(opened,), name="pocketllm-retire", daemon=True).start()
        if self._state is HostState.READY:
            self._loader = None
            self._set_state(HostState.FAILED)
            self._plan_restart()

    def fail(self, reason: str) -> None:
        """Give the open engine up: a fault outside it has made its requests unanswerable."""
        with self._lock:
            if self._open is not None:
                self._engine_failed(self._open, reason)

    def _plan_restart(self) -> None:
        now = time.monotonic()
        self._failed_at.append(now)
        while self._failed_at and self._failed_at[0] < now - self.limits.restart_window_s:
            self._failed_at.popleft()
        count = len(self._failed_at)
        if count > self.limits.max_restarts:
            why = self._failure.message if self._failure else "unknown reason"
            self._failure = EngineError(
                f"{why} It failed {count} times within {self.limits.restart_window_s:g} s, so it is not opened again: "
                "see the log, then restart the program."
            )
            return
        delay_s = self.limits.restart_delay_s * 2 ** (count - 1)
        timer = threading.Timer(delay_s, self._restart)
        timer.daemon = True
        timer.start()

    def _restart(self) -> None:
        with self._changed:
            if self._state is HostState.FAILED and self._loader is None:
                self._progress = ("reopening", 0.0)
                self._set_state(HostState.LOADING)
                self.start()

    # -- requests -------------------------------------------------------------------------------------------------

    def prepare(self, request: GenerationRequest) -> Prepared:
        """Check against capabilities, render and tokenize. The costly part of a request: call it off an event loop."""
        opened = self._ready_engine()
        check_request(request, opened.capabilities)
        return opened.prompts.prepare(request, opened.capabilities)

    def submit(self, request: GenerationRequest, prepared: Prepared | None = None) -> RequestRecord:
        """Admit a request and hand it to the engine; it is active from here to its final event.

        Raises:
            BackendUnavailableError: the slot is not READY. QueueFullError: too many active requests.
            DuplicateRequestError: the request_id is active. UnsupportedFeatureError, ConfigurationError: see
            :meth:`prepare`; and whatever an extension refuses with.
        """
        if prepared is None:
            prepared = self.prepare(request)
        opened, call, record = self._admit(prepared)
        try:
            opened.hooks.generate(call)
        except BaseException:
            self._withdraw(opened, record)
            raise
        with self._lock:
            if record.cancel_reason is not None and not record.finished:  # cancelled while the hook was running
                self._cancel_record(record, record.cancel_reason)
        self._wake.set()  # the driver's next timer may be earlier now
        return record

    def _admit(self, prepared: Prepared) -> tuple[OpenEngine, GenerateCall, RequestRecord]:
        request = prepared.request
        with self._lock:
            opened = self._ready_engine()
            if request.request_id in self._records:
                raise DuplicateRequestError(
                    f"request_id {request.request_id!r} is already active: wait for it, cancel it, or use another id.",
                    param="request_id",
                )
            if len(self._records) >= self.args.max_num_requests:
                raise QueueFullError(
                    f"{len(self._records)} requests are active, which is the limit (max_num_requests): try again later."
                )
            record = RequestRecord(request, self._lock, self._abandoned)
            self._records[request.request_id] = record
            if request.deadline_s is not None:
                self._timers[request.request_id] = record.accepted_at + request.deadline_s
            call = StagedCall(
                prepared,
                record,
                opened.prompts,
                emit=self._answers.post,
                register=functools.partial(self._register, opened),
            )
            return opened, call, record

    def _withdraw(self, opened: OpenEngine, record: RequestRecord) -> None:
        """The hook raised: the engine may or may not run it, so cancel and let late events fall on the floor."""
        with self._lock:
            handles = opened.pump.forget(record) or [choice.handle for choice in record.request.choices]
            self._records.pop(record.request_id, None)
            self._timers.pop(record.request_id, None)
        for handle in handles:
            opened.hooks.cancel(handle, CancelReason.PLUGIN)

    def cancel(self, request_id: str, reason: CancelReason = CancelReason.CLIENT) -> bool:
        """Ask for the end of an active request, further prompts of its call included, at the next step boundary.

        False when nothing of it is active, or when it was cancelled before.
        """
        part = request_id + PART_MARK
        with self._lock:
            records = [
                record
                for active_id, record in self._records.items()
                if (active_id == request_id or active_id.startswith(part)) and record.cancel_reason is None
            ]
            for record in records:
                self._cancel_record(record, reason)
            return bool(records)

    def _cancel_record(self, record: RequestRecord, reason: CancelReason) -> None:
        record.cancel_reason = record.cancel_reason or reason
        opened = self._open
        if opened is None:
            return
        self._timers[record.request_id] = time.monotonic() + self.limits.cancel_grace_s
        for handle in opened.pump.unfinished_handles(record):
            opened.hooks.cancel(handle, reason)
        self._wake.set()

    def _abandoned(self, record: RequestRecord) -> None:
        if record.request_id in self._records:
            self._cancel_record(record, CancelReason.DISCONNECTED)

    def stats(self) -> EngineStats:
        opened = self._open
        return opened.hooks.stats() if opened is not None else EngineStats()

    def _register(self, opened: OpenEngine, streams: list[ChoiceStream]) -> None:
        """From here on events of these choices are routed; called when their request's call is sealed."""
        with self._lock:
            if self._open is not opened:
                raise BackendUnavailableError("The engine was lost while it took this request: try again.")
            opened.pump.register(streams)

    # -- events ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Make :meth:`fileno` readable once, so that a waiting driver looks again."""
        self._wake.set()

    def fileno(self) -> int:
        """Readable while :meth:`drain_events` has work (epoll and kqueue descriptors can themselves be waited for)."""
        return self._selector.fileno()

    def next_timer(self) -> float | None:
        """``time.monotonic()`` of the next deadline or heartbeat, or None."""
        if not self._timers:
            return self._heartbeat_at
        with self._lock:
            times = list(self._timers.values())
        if self._heartbeat_at is not None:
            times.append(self._heartbeat_at)
        return min(times, default=None)

    def drain_events(self) -> None:
        """Route everything that waits; called from one thread at a time."""
        # No source blocks, and asking which of them is ready would cost more than looking into each.
        with self._lock:
            if self._wake.is_set:
                self._wake.clear()
            answers = self._answers.drain()
            opened = self._open
            if opened is not None:
                if answers:
                    self._after(opened.pump.route(answers), opened)
                self._route(opened)
            self._run_timers()
            changed, self._state_changed = self._state_changed, False
        if changed:
            for listener in self._listeners:
                listener()

    def _route(self, opened: OpenEngine) -> None:
        try:
            routed = opened.pump.route(opened.hooks.engine.events.drain())
        except Exception as error:  # a malformed batch, a broken source, a frame cut off by a dying child
            logger.exception("events cannot be read")
            self._engine_failed(opened, f"The engine's events cannot be read: {error!r}.")
            return
        self._after(routed, opened)
        if routed.fatal is not None:
            self._engine_failed(opened, routed.fatal)

    def _after(self, routed: Routed, opened: OpenEngine) -> None:
        for handle, reason in routed.cancels:
            opened.hooks.cancel(handle, reason)
        for record in routed.finished:
            self._records.pop(record.request_id, None)
            self._timers.pop(record.request_id, None)
            self._changed.notify_all()

    def _run_timers(self) -> None:
        if not self._timers and self._heartbeat_at is None:
            return
        now = time.monotonic()
        due = [request_id for request_id, at in self._timers.items() if at <= now]
        for request_id in due:
            del self._timers[request_id]
            record = self._records.get(request_id)
            opened = self._open
            if record is None or opened is None:
                continue
            if record.cancel_reason is None:
                self._cancel_record(record, CancelReason.DEADLINE)
            else:
                self._after(opened.pump.end([record], FinishReason.CANCELLED, None), opened)
                self._engine_failed(
                    opened,
                    f"The engine did not end the cancelled request {request_id} within "
                    f"{self.limits.cancel_grace_s:g} s: it hangs.",
                )
        if self._heartbeat_at is not None and self._heartbeat_at <= now and self._open is not None:
            self._heartbeat_at = now + self.limits.heartbeat_s
            reason = self._open.hooks.engine.check()  # type: ignore[attr-defined]  # only set for engines that have it
            if reason is not None:
                self._engine_failed(self._open, reason)

    # -- the end --------------------------------------------------------------------------------------------------

    def begin_drain(self) -> None:
        """Refuse new requests from now on; those that are active go on."""
        with self._lock:
            if self._state in (HostState.READY, HostState.LOADING, HostState.FAILED):
                self._set_state(HostState.DRAINING)

    def cancel_all(self, reason: CancelReason = CancelReason.SHUTDOWN) -> int:
        """Cancel every active request; returns how many."""
        with self._lock:
            records = [record for record in self._records.values() if record.cancel_reason is None]
            for record in records:
                self._cancel_record(record, reason)
            return len(records)

    def wait_idle(self, timeout_s: float) -> bool:
        """Block until no request is active; False when time ran out. Another thread must drain events meanwhile."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._records, timeout_s)

    def close(self, deadline_s: float = 5.0) -> None:
        """Close the engine and end every request; idempotent. Another thread may go on draining events meanwhile."""
        with self._changed:
            if self._state is HostState.CLOSED:
                return
            self._set_state(HostState.CLOSED)
            opened, loader = self._open, self._loader
            for record in self._records.values():
                record.cancel_reason = record.cancel_reason or CancelReason.SHUTDOWN
        if opened is not None:
            opened.hooks.close(deadline_s)
            with self._lock:
                if self._open is opened:
                    self._route(opened)  # the finals that the engine posted while it closed
                    records = list(self._records.values())
                    self._after(opened.pump.end(records, FinishReason.CANCELLED, None), opened)
                if self._open is opened:
                    self._selector.unregister(opened.hooks.engine.events)
                    self._open = None
            close_events(opened.hooks.engine)
        if loader is not None and loader is not threading.current_thread():
            loader.join(deadline_s)
        self._wake.set()

    def release(self) -> None:
        """Free the descriptors, after :meth:`close` and after the driver has stopped."""
        self._selector.close()
        self._wake.close()
        self._answers.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _ready_engine(self) -> OpenEngine:
        opened = self._open
        if self._state is HostState.READY and opened is not None:
            return opened
        if self._state is HostState.FAILED and self._failure is not None:
            if self._epoch == 0:
                raise BackendUnavailableError(f"The model could not be loaded: {self._failure.message}")
            raise BackendUnavailableError(f"The engine failed and is not back yet: {self._failure.message}")
        words = {
            HostState.LOADING: "The model is still loading: try again when it is ready.",
            HostState.DRAINING: "The server is shutting down and takes no new requests.",
            HostState.CLOSED: "This engine is closed: open a new one.",
        }
        raise BackendUnavailableError(words.get(self._state, f"The engine is not ready ({self._state.value})."))

    def _set_state(self, state: HostState) -> None:
        self._state = state
        self._state_changed = True
        self._changed.notify_all()
        self._wake.set()
