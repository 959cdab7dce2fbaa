"""The body of a stream of server-sent events: silence is filled and a reader that has stopped reading is cut, with one
timer for a whole response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from starlette.types import Scope, Send

from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.transport.http_io import WRITE, ClientGoneError

COMMENT = b": keep-alive\n\n"


class EventBody:
    """``async with`` around the sending of a response, each part of which holds whole frames.

    After ``keep_alive_interval_s`` without a part a comment goes out, so that no proxy takes a long prefill for a dead
    connection; never beside another send, so a reader that has stopped reading gets none. A part that nobody takes for
    ``send_timeout_s`` ends the block. Several tasks may send at once; what counts is the time since any of them got on.

    A timeout around every part would cost more than the rest of sending it. So a part only notes the time, and the
    timer looks at the note whenever a limit may have passed, and at the very moment when it has.

    Raises (by the block):
        ClientGoneError: the reader has stalled; what ran inside was cancelled.
    """

    def __init__(self, scope: Scope, send: Send, settings: ServerSettings) -> None:
        self._send = send
        self._write: Callable[[bytes], bool] | None = scope.get(WRITE)
        self._stall_limit_s = settings.send_timeout_s
        self._interval_s = settings.keep_alive_interval_s
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._num_cancels_before = 0
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None
        self._num_sending = 0
        self._moved_at = self._loop.time()
        self._has_stalled = False

    def send_at_once(self, data: bytes) -> Coroutine[Any, Any, None] | None:
        """Send a part of the body without a task where nothing is in the way; else the :meth:`send` to await."""
        if self._write is None or self._comment is not None or not self._write(data):
            return self.send(data)
        self._moved_at = self._loop.time()
        return None

    async def send(self, data: bytes, *, more: bool = True) -> None:
        """Send a part of the body; ``more=False`` ends it."""
        if self._comment is not None and self._comment is not asyncio.current_task():
            await self._comment
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
        self._look()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Not kept: the task keeps the error that is raised here, whose traceback keeps this frame.
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()
            await asyncio.gather(self._comment, return_exceptions=True)
        if task is None or not self._has_stalled:
            return
        # Other code that has cancelled the task meanwhile must see its cancellation.
        is_ours = task.uncancel() <= self._num_cancels_before and kind is asyncio.CancelledError
        del task
        if is_ours:
            raise ClientGoneError from None

    def _look(self) -> None:
        now = self._loop.time()
        due = now + self._stall_limit_s
        if self._num_sending:
            due = self._moved_at + self._stall_limit_s
            if due <= now:
                self._stall()
                return
        if self._interval_s:
            comment_at = self._moved_at + self._interval_s
            if comment_at <= now and not self._num_sending:
                self._comment = self._loop.create_task(self._send_comment())
            due = min(due, comment_at if comment_at > now else now + self._interval_s)
        self._timer = self._loop.call_at(due, self._look)

    def _stall(self) -> None:
        self._timer = None
        self._has_stalled = True
        if self._task is not None:
            self._task.cancel()

    async def _send_comment(self) -> None:
        try:
            await self.send(COMMENT)
        finally:
            self._comment = None
