"""What callers' threads leave for the engine's thread, and which handles are still owed an end."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from pocketllm.errors import BackendUnavailableError
from pocketllm.structured import TokenMatcher
from pocketllm.types import Finish, GenerationRequest


@dataclass(frozen=True)
class Arrival:
    """A request, what restricts each of its choices, and how many choices arrived before it."""

    request: GenerationRequest
    matchers: list[TokenMatcher | None]
    first_arrival: int


class Inbox:
    """Threads: any. The engine's thread takes messages and settles ends; the others submit, cancel and close."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._messages: deque[Arrival | int] = deque()
        self._open_handles: set[int] = set()
        self._num_arrivals = 0
        self._closing = False
        self._fatal: str | None = None
        self._abandoned = False

    @property
    def closing(self) -> bool:
        return self._closing

    @property
    def fatal(self) -> str | None:
        """Why the engine computes nothing any more."""
        return self._fatal

    def submit(self, request: GenerationRequest, matchers: list[TokenMatcher | None]) -> None:
        """Queue a request.

        Raises:
            BackendUnavailableError: the engine is closed or broken.
        """
        with self._lock:
            if self._closing or self._fatal is not None:
                raise BackendUnavailableError(self._fatal or "The engine is closed: open a new one.")
            self._messages.append(Arrival(request, matchers, self._num_arrivals))
            self._num_arrivals += len(request.choices)
            self._open_handles.update(choice.handle for choice in request.choices)
        self._wake.set()

    def cancel(self, handle: int) -> None:
        """Queue a cancellation; nothing for a handle that has ended."""
        with self._lock:
            if handle not in self._open_handles:
                return
            self._messages.append(handle)
        self._wake.set()

    def close(self) -> None:
        """Accept nothing from now on."""
        with self._lock:
            self._closing = True
        self._wake.set()

    def fail(self, fatal: str) -> None:
        """Accept nothing from now on, and say why."""
        with self._lock:
            self._fatal = self._fatal or fatal

    def abandon(self) -> list[int]:
        """The handles that are still open. The caller answers for them; the engine's thread settles nothing more."""
        with self._lock:
            self._abandoned = True
            handles = sorted(self._open_handles)
            self._open_handles.clear()
        return handles

    def take(self) -> list[Arrival | int]:
        """Every message that waits, oldest first; an int is a handle to cancel."""
        with self._lock:
            messages = list(self._messages)
            self._messages.clear()
        return messages

    def settle(self, finished: list[Finish]) -> bool:
        """Note ends that are about to be posted; False when every handle was abandoned."""
        with self._lock:
            if self._abandoned:
                return False
            self._open_handles.difference_update(finish.handle for finish in finished)
        return True

    def wait(self) -> None:
        """Block until something was submitted, cancelled or closed since the last wait."""
        self._wake.wait()
        self._wake.clear()
