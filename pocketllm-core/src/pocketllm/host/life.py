"""The life of a host: its states, the engine it holds, and the engines it opens one after another."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pocketllm.errors import BackendUnavailableError, EngineError, PocketLLMError
from pocketllm.host.opening import retire
from pocketllm.host.state import HostLimits, HostState

if TYPE_CHECKING:
    from pocketllm.host.events import HostEvents
    from pocketllm.host.opening import EngineOpener, FoundModel, OpenEngine
    from pocketllm.host.timers import HostTimers

logger = logging.getLogger("pocketllm.engine")


class HostLife:
    """States, epochs and restarts.

        ┌──> LOADING ──> READY ──> DRAINING ──> CLOSED
        │       │          │
        │       ▼          │ lost
        └─── FAILED <──────┘
         after a delay, up to max_restarts times in a window; a first load that fails is not tried again

    Threads: any. State changes under the host's lock, and listeners hear of it from the driver's next drain.

    Args:
        lock: the host's.
        events, timers: told of each engine that opens and of its end.
    """

    def __init__(
        self,
        opener: EngineOpener,
        limits: HostLimits,
        lock: threading.RLock,
        events: HostEvents,
        timers: HostTimers,
        *,
        name: str,
        on_progress: Callable[[str, float], None] | None = None,
    ) -> None:
        self._opener = opener
        self._limits = limits
        self._events = events
        self._timers = timers
        self._name = name
        self._on_progress = on_progress
        self._changed = threading.Condition(lock)
        self._listeners: list[Callable[[], None]] = []
        self._has_changed = False
        self._loader: threading.Thread | None = None
        self._failed_at: deque[float] = deque()
        self.state = HostState.LOADING
        self.epoch = 0
        """Counts the engines that were opened here."""
        self.engine: OpenEngine | None = None
        self.model: FoundModel | None = None
        self.failure: PocketLLMError | None = None
        """Why the host is FAILED, or why its last engine was lost; None after a good open."""
        self.progress = ("", 0.0)

    # -- what is asked ------------------------------------------------------------------------------------------

    def ready_engine(self) -> OpenEngine:
        """The engine that takes requests.

        Raises:
            BackendUnavailableError: there is none; says why.
        """
        opened = self.engine
        if self.state is HostState.READY and opened is not None:
            return opened
        if self.state is HostState.FAILED and self.failure is not None:
            if self.epoch == 0:
                raise BackendUnavailableError(f"The model could not be loaded: {self.failure.message}")
            raise BackendUnavailableError(f"The engine failed and is not back yet: {self.failure.message}")
        words = {
            HostState.LOADING: "The model is still loading: try again when it is ready.",
            HostState.DRAINING: "The server is shutting down and takes no new requests.",
            HostState.CLOSED: "This engine is closed: open a new one.",
        }
        raise BackendUnavailableError(words.get(self.state, f"The engine is not ready ({self.state.value})."))

    def check_ready(self) -> None:
        """Raise why the host is not READY: a failed first load with its own error."""
        if self.state is HostState.FAILED and self.epoch == 0 and self.failure is not None:
            raise self.failure
        self.ready_engine()

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Block until READY.

        Raises:
            PocketLLMError: the load failed, with its own error; BackendUnavailableError when closed or out of time.
        """
        with self._changed:
            done = self._changed.wait_for(lambda: self.state is not HostState.LOADING, timeout_s)
            if not done:
                raise BackendUnavailableError(f"The model is still loading after {timeout_s} s: {self.progress[0]}.")
            self.check_ready()

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def take_listeners(self) -> list[Callable[[], None]]:
        """Whom to tell, outside the lock, that the state has changed since the last call. Lock held."""
        changed, self._has_changed = self._has_changed, False
        return self._listeners if changed else []

    # -- opening ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin loading in the background; returns at once."""
        with self._changed:
            if self._loader is None:
                self._loader = threading.Thread(target=self._load, name=f"pocketllm-load-{self._name}", daemon=True)
                self._loader.start()

    def _load(self) -> None:
        try:
            opened = self._opener.open(self.epoch + 1, self)
        except BaseException as error:  # a runtime may raise anything, SystemExit too: the host must say so
            logger.debug("load failed", exc_info=True)
            self._load_failed(error if isinstance(error, PocketLLMError) else EngineError(f"Loading failed: {error!r}"))
            return
        with self._changed:
            wanted = self.state is HostState.LOADING
            if wanted:
                self.epoch, self.engine, self.failure = opened.epoch, opened, None
                self._events.watch(opened.hooks.engine.events)
                if opened.hooks.has_heartbeat:
                    self._timers.start_heartbeat(time.monotonic())
                self._become(HostState.READY)
        if not wanted:  # closed or drained while it was loading
            retire(opened)

    def found(self, model: FoundModel) -> None:
        self.model = model

    def report(self, stage: str, fraction: float) -> None:
        self.progress = (stage, fraction)
        if self._on_progress is not None:
            self._on_progress(stage, fraction)

    def aborted(self) -> bool:
        return self.state is HostState.CLOSED

    def _load_failed(self, failure: PocketLLMError) -> None:
        with self._changed:
            self.failure = failure
            self._loader = None
            if self.state is not HostState.LOADING:
                return  # closed or drained while it was loading
            was_open = self.epoch > 0
            self._become(HostState.FAILED)
            if was_open:  # a first load that fails is the person's to mend
                self._plan_restart()

    # -- losing an engine ---------------------------------------------------------------------------------------

    def part(self, failure: PocketLLMError | None = None) -> None:
        """Take the open engine out of service, for ``failure`` or for the close. Lock held."""
        if self.engine is not None:
            self._events.unwatch(self.engine.hooks.engine.events)
            self._timers.stop_heartbeat()
            self.engine = None
        self.failure = failure or self.failure

    def reopen(self) -> None:
        """After a failure: say FAILED and open the next engine within the limits. Lock held."""
        if self.state is HostState.READY:
            self._loader = None
            self._become(HostState.FAILED)
            self._plan_restart()

    def _plan_restart(self) -> None:
        now = time.monotonic()
        self._failed_at.append(now)
        while self._failed_at and self._failed_at[0] < now - self._limits.restart_window_s:
            self._failed_at.popleft()
        count = len(self._failed_at)
        if count > self._limits.max_restarts:
            why = self.failure.message if self.failure else "unknown reason"
            self.failure = EngineError(
                f"{why} It failed {count} times within {self._limits.restart_window_s:g} s, so it is not opened again: "
                "see the log, then restart the program."
            )
            return
        timer = threading.Timer(self._limits.restart_delay_s * 2 ** (count - 1), self._restart)
        timer.daemon = True
        timer.start()

    def _restart(self) -> None:
        with self._changed:
            if self.state is HostState.FAILED and self._loader is None:
                self.progress = ("reopening", 0.0)
                self._become(HostState.LOADING)
                self.start()

    # -- the end ------------------------------------------------------------------------------------------------

    def begin_drain(self) -> None:
        """Refuse new requests from now on."""
        with self._changed:
            if self.state in (HostState.READY, HostState.LOADING, HostState.FAILED):
                self._become(HostState.DRAINING)

    def begin_close(self) -> bool:
        """CLOSED from now on; False when it was already. Lock held."""
        if self.state is HostState.CLOSED:
            return False
        self._become(HostState.CLOSED)
        return True

    def join_loader(self, timeout_s: float) -> None:
        """Wait for a load that is under way, which ends early once the host is CLOSED."""
        loader = self._loader
        if loader is not None and loader is not threading.current_thread():
            loader.join(timeout_s)

    def _become(self, state: HostState) -> None:
        self.state = state
        self._has_changed = True
        self._changed.notify_all()
        self._events.wake()
