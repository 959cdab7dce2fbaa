"""Cutting a reader that has stopped reading, with one timer for a whole response."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Send

from pocketllm_server.http_io import ClientGoneError


class StallTimer:
    """``async with`` around the sending of a response: a chunk that nobody takes for ``limit_s`` ends the block.

    A timeout around every chunk would cost more than the rest of sending it. So a chunk only notes the time, and one
    timer looks at the note whenever the limit may have passed, and at the very moment when it has. Several tasks may
    send at once; what counts is the time since any of them got on.

    Raises (by the block):
        ClientGoneError: the reader has stalled; what ran inside was cancelled.
    """

    def __init__(self, send: Send, limit_s: float) -> None:
        self._send = send
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._num_cancels_before = 0
        self._timer: asyncio.TimerHandle | None = None
        self._num_sending = 0
        self._moved_at = 0.0
        self._has_stalled = False

    async def send_chunk(self, data: bytes, *, more: bool = True) -> None:
        """Send a part of the body; ``more=False`` ends it."""
        if not self._num_sending:
            self._moved_at = self._loop.time()
        self._num_sending += 1
        try:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
        finally:
            self._num_sending -= 1
            if self._num_sending:
                self._moved_at = self._loop.time()

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._num_cancels_before = self._task.cancelling()
        self._timer = self._loop.call_later(self._limit_s, self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Not kept: the task keeps the error that is raised here, whose traceback keeps this frame.
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if task is None or not self._has_stalled:
            return
        # Whoever else has cancelled the task meanwhile must see the cancellation.
        is_ours = task.uncancel() <= self._num_cancels_before and kind is asyncio.CancelledError
        del task
        if is_ours:
            raise ClientGoneError from None

    def _look(self) -> None:
        now = self._loop.time()
        due = self._moved_at + self._limit_s if self._num_sending else now + self._limit_s
        if due > now:
            self._timer = self._loop.call_at(due, self._look)
            return
        self._timer = None
        self._has_stalled = True
        if self._task is not None:
            self._task.cancel()
