"""The home an engine lives in.

Everything binds to the host, never to an engine: the engine may be absent, replaced after a crash, in this process or
in a child.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pocketllm.engine.closing import close_at_exit
from pocketllm.fields.requests import check_request
from pocketllm.host.admission import Admission
from pocketllm.host.drain import EventDrain
from pocketllm.host.events import HostEvents
from pocketllm.host.life import HostLife
from pocketllm.host.opening import EngineOpener
from pocketllm.host.record import RequestRecord
from pocketllm.host.state import HostLimits, HostState
from pocketllm.host.timers import HostTimers
from pocketllm.plugins.registry import get_registry
from pocketllm.types import (
    CancelReason,
    Capabilities,
    EngineStats,
    GenerationRequest,
    HealthStatus,
    ModelSource,
)

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint, Tokenizer
    from pocketllm.engine_args import EngineArgs
    from pocketllm.errors import PocketLLMError
    from pocketllm.plugins.registry import Registry
    from pocketllm.plugins.selection import Selection
    from pocketllm.prompt.builder import Prepared, PromptBuilder


class EngineHost:
    """One engine's home: opens, watches, reopens and closes it, admits requests and routes its events.

        life        states, epochs, restarts ─────────┐
        admission   requests until their final event ─┼──> drain: routes events, acts on what is due
        timers      deadlines, graces, heartbeat ─────┤
        events      one descriptor to wait for ───────┘

    They share one lock. The owner of the host waits until :meth:`fileno` is readable or :meth:`next_timer` is due
    and then calls :meth:`drain_events` (a thread for ``LLM``, the event loop for ``AsyncLLM``). All other methods may
    be called from any thread.
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
        self.args = args
        self.name = name
        self.limits = limits or HostLimits()
        self._lock = threading.RLock()
        self._events = HostEvents()
        self._timers = HostTimers(self.limits.heartbeat_s)
        opener = EngineOpener(
            args,
            registry or get_registry(),
            placement=args.placement if args.placement != "auto" else placement,
            limits=self.limits,
        )
        self._life = HostLife(
            opener, self.limits, self._lock, self._events, self._timers, name=name, on_progress=on_progress
        )
        self._admission = Admission(
            self._life,
            self._events,
            self._timers,
            self._lock,
            max_active=args.max_num_requests,
            cancel_grace_s=self.limits.cancel_grace_s,
        )
        self._drain = EventDrain(self._life, self._admission, self._events, self._timers, self._lock, name=name)

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin loading in the background; returns at once."""
        close_at_exit(self)
        self._life.start()

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Block until READY.

        Raises:
            PocketLLMError: the load failed, with its own error; BackendUnavailableError when closed or out of time.
        """
        self._life.wait_ready(timeout_s)

    def check_ready(self) -> None:
        """Raise why the host is not READY: a failed first load with its own error."""
        self._life.check_ready()

    @property
    def state(self) -> HostState:
        return self._life.state

    @property
    def epoch(self) -> int:
        """Counts the engines that were opened here; 0 until the first one is READY."""
        return self._life.epoch

    @property
    def progress(self) -> tuple[str, float]:
        """Stage and fraction of the load that is under way."""
        return self._life.progress

    @property
    def selection(self) -> Selection | None:
        """The chosen backend and all that were considered; None until the model is found."""
        return self._life.model.selection if self._life.model is not None else None

    @property
    def model_source(self) -> ModelSource | None:
        return self._life.model.source if self._life.model is not None else None

    @property
    def checkpoint(self) -> Checkpoint | None:
        return self._life.model.checkpoint if self._life.model is not None else None

    @property
    def failure(self) -> PocketLLMError | None:
        """Why the host is FAILED, or why its last engine was lost; None after a good open."""
        return self._life.failure

    @property
    def capabilities(self) -> Capabilities:
        """As :attr:`prompts`."""
        return self._life.ready_engine().capabilities

    @property
    def tokenizer(self) -> Tokenizer:
        """As :attr:`prompts`."""
        return self.prompts.tokenizer

    @property
    def prompts(self) -> PromptBuilder:
        """Raises BackendUnavailableError while no engine is ready."""
        return self._life.ready_engine().prompts

    def stats(self) -> EngineStats:
        opened = self._life.engine
        return opened.hooks.stats() if opened is not None else EngineStats()

    def health(self) -> HealthStatus:
        life = self._life
        stage, fraction = life.progress
        details: dict[str, object] = {"epoch": life.epoch, "slot": self.name}
        message = ""
        if life.state is HostState.LOADING:
            message = f"loading: {stage or 'starting'} ({fraction:.0%})"
        if life.failure is not None:
            details["last_failure"] = life.failure.message
            if life.state is HostState.FAILED:
                message = life.failure.message
        selection = self.selection
        return HealthStatus(
            status=life.state.value,
            backend=selection.backend.name if selection is not None else None,
            ready=life.state is HostState.READY,
            message=message,
            details=details,
        )

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` from the driver's side after each change of state."""
        self._life.on_change(listener)

    # -- requests -------------------------------------------------------------------------------------------------

    def prepare(self, request: GenerationRequest) -> Prepared:
        """Check against capabilities, render and tokenize. The costly part of a request: call it off an event loop."""
        opened = self._life.ready_engine()
        check_request(request, opened.capabilities)
        return opened.prompts.prepare(request, opened.capabilities)

    def submit(self, request: GenerationRequest, prepared: Prepared | None = None) -> RequestRecord:
        """Admit a request and hand it to the engine; it is active from here to its final event.

        Raises:
            BackendUnavailableError: the host is not READY. QueueFullError: too many active requests.
            DuplicateRequestError: the request_id is active. UnsupportedFeatureError, ConfigurationError: see
            :meth:`prepare`; and whatever an extension refuses with.
        """
        return self._admission.submit(prepared if prepared is not None else self.prepare(request))

    def cancel(self, request_id: str, reason: CancelReason = CancelReason.CLIENT) -> bool:
        """Ask for the end of an active request at the next step boundary; a call's id means all its requests.

        False when nothing of it is active, or when it was cancelled before.
        """
        return self._admission.cancel(request_id, reason)

    @property
    def num_active(self) -> int:
        return self._admission.num_active

    def active_request_ids(self) -> list[str]:
        return [record.request_id for record in self._admission.records()]

    # -- events ---------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable while :meth:`drain_events` has work."""
        return self._events.fileno()

    def wake(self) -> None:
        """Make :meth:`fileno` readable once, so that a waiting driver looks again."""
        self._events.wake()

    def next_timer(self) -> float | None:
        """``time.monotonic()`` of the next deadline or heartbeat, or None."""
        with self._lock:
            return self._timers.next()

    def drain_events(self) -> None:
        """Route everything that waits; called from one thread at a time."""
        with self._lock:
            self._drain.run()
            listeners = self._life.take_listeners()
        for listener in listeners:
            listener()

    def fail(self, reason: str) -> None:
        """Give the open engine up: a fault outside it has made its requests unanswerable."""
        with self._lock:
            if self._life.engine is not None:
                self._drain.lose(self._life.engine, reason)

    # -- the end --------------------------------------------------------------------------------------------------

    def begin_drain(self) -> None:
        """Refuse new requests from now on; those that are active run on."""
        self._life.begin_drain()

    def cancel_all(self, reason: CancelReason = CancelReason.SHUTDOWN) -> int:
        """Cancel every active request; returns how many."""
        return self._admission.cancel_all(reason)

    def wait_idle(self, timeout_s: float) -> bool:
        """Block until no request is active; False when time ran out. Another thread must drain events meanwhile."""
        return self._admission.wait_idle(timeout_s)

    def close(self, deadline_s: float = 5.0) -> None:
        """Close the engine and end every request; idempotent. Another thread may keep draining events meanwhile."""
        with self._lock:
            if not self._life.begin_close():
                return
            opened = self._life.engine
            for record in self._admission.records():
                record.cancel_reason = record.cancel_reason or CancelReason.SHUTDOWN
        if opened is not None:
            self._drain.close_engine(opened, deadline_s)
        self._life.join_loader(deadline_s)
        self._events.wake()

    def release(self) -> None:
        """Free the descriptors, after :meth:`close` and after the driver has stopped."""
        self._events.close()
