"""The async reader of one request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self

from pocketllm.errors import RequestCancelledError
from pocketllm.host.record import RequestRecord
from pocketllm.types import GenerationResult, TokenEvent

Take = Callable[[Sequence[TokenEvent]], Coroutine[Any, Any, None] | None]
"""See :meth:`AsyncStream.forward`."""


class AsyncStream(AsyncIterator[TokenEvent]):
    """An async reader of one request: what has arrived since the last look merges into one event per choice.

    Closing it early, or cancelling the task that reads it inside ``async with``, leaves the request, which cancels it
    when nobody else reads.
    """

    def __init__(self, record: RequestRecord) -> None:
        self.record = record
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiters: list[asyncio.Future[None]] = []
        self._take: Take | None = None  # where output goes at once, while forward() waits for more
        self._busy: Coroutine[Any, Any, None] | None = None  # what has to end before it is given more
        self._subscription = record.subscribe(self._on_output)
        self._ready: list[TokenEvent] = []

    @property
    def request_id(self) -> str:
        return self.record.request_id

    @property
    def num_prompt_tokens(self) -> int:
        return self.record.num_prompt_tokens

    def _on_output(self) -> None:
        if threading.get_ident() == self._thread:
            self._react()
        else:  # a host that is closing
            self._loop.call_soon_threadsafe(self._react)

    def _react(self) -> None:
        if self._take is None:
            self._wake(None)
            return
        try:
            events = self._subscription.take() if not self._subscription.at_end else []
            if events:
                self._busy = self._take(events)
            is_over = self._busy is not None or self._subscription.at_end
        except Exception as error:  # noqa: BLE001  # any taker: forward() raises it, and the drain continues
            self._wake(error)
            return
        if is_over:
            self._wake(None)

    def _wake(self, error: Exception | None) -> None:
        self._take = None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    async def _output(self) -> None:
        """Wait for more; to be called when the log has been looked at and before the loop gets on."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            del waiter  # an error's traceback holds this frame, and the future holds the error

    async def next_events(self) -> list[TokenEvent]:
        """All that arrived since the last call, at least one event; [] at the end.

        Raises:
            SlowReaderError: this reader fell too far behind and was cut.
        """
        while not self._subscription.at_end:
            events = self._subscription.take()
            if events:
                return events
            await self._output()
        self._subscription.close()
        return []

    async def forward(self, take: Take) -> None:
        """Give everything to ``take`` until the end, the moment it comes.

        ``take`` is called on the event loop, from within the drain that brought the events, and has to be quick: it
        spares each token a task switch and a turn of the loop. What it cannot do at once it returns as a coroutine,
        which is awaited here before anything more is given; what has arrived by then merges as in :meth:`next_events`.

        Raises:
            SlowReaderError: this reader fell too far behind and was cut. And what ``take`` raises.
        """
        try:
            while not self._subscription.at_end:
                events = self._subscription.take()
                if events:
                    self._busy = take(events)
                else:
                    self._take = take
                    await self._output()
                if self._busy is not None:
                    busy, self._busy = self._busy, None
                    await busy
        finally:
            self._take = None
            if self._busy is not None:  # this task was cancelled first
                self._busy.close()
                self._busy = None
        self._subscription.close()

    async def __anext__(self) -> TokenEvent:
        if not self._ready:
            self._ready = await self.next_events()
            if not self._ready:
                raise StopAsyncIteration
        return self._ready.pop(0)

    async def result(self) -> GenerationResult:
        """Wait for the end; the whole answer, whatever was read before.

        Raises:
            RequestCancelledError, DeadlineExceededError, EngineError, PluginError: there is no answer.
        """
        self._subscription.wait_for_end()
        while not self.record.finished:
            if self._subscription.at_end:
                raise RequestCancelledError(f"The reader of request {self.request_id} was closed.")
            await self._output()
        self._subscription.close()
        return self.record.result()

    async def aclose(self) -> None:
        self._subscription.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._subscription.close()
