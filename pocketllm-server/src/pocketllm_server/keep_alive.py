"""Comments in a silent event stream, so that no proxy takes a long prefill for a dead connection."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

COMMENT = b": keep-alive\n\n"
_EVENT_END = b"\n\n"


class KeepAlive:
    """ASGI middleware for every response of type ``text/event-stream``.

    A comment goes out after ``interval_s`` without a message, only between whole events and never beside another send:
    a reader that has stopped reading gets none.
    """

    def __init__(self, app: ASGIApp, interval_s: float) -> None:
        self._app = app
        self._interval_s = interval_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._interval_s:
            await self._app(scope, receive, send)
            return
        stream = _Stream(send, self._interval_s)
        try:
            await self._app(scope, receive, stream.send)
        finally:
            await stream.close()


class _Stream:
    def __init__(self, send: Send, interval_s: float) -> None:
        self._send = send
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None
        self._sent_at = 0.0
        self._is_sending = False
        self._is_between_events = True

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._send(message)
            if _is_event_stream(message):
                self._sent_at = self._loop.time()
                self._timer = self._loop.call_later(self._interval_s, self._wake)
            return
        if self._timer is None:
            await self._send(message)
            return
        if self._comment is not None:
            await self._comment
        self._is_sending = True
        try:
            await self._send(message)
        finally:
            self._is_sending = False
            self._sent_at = self._loop.time()
        self._is_between_events = message.get("body", b"").endswith(_EVENT_END)
        if not message.get("more_body", False):
            self._timer.cancel()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()
            await asyncio.gather(self._comment, return_exceptions=True)

    def _wake(self) -> None:
        # Moving the timer with every event would cost more than looking at the clock when it fires.
        due = self._sent_at + self._interval_s
        now = self._loop.time()
        if now >= due and self._is_between_events and not self._is_sending and self._comment is None:
            self._comment = self._loop.create_task(self._send_comment())
        self._timer = self._loop.call_at(due if due > now else now + self._interval_s, self._wake)

    async def _send_comment(self) -> None:
        try:
            await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})
        finally:
            self._comment = None


def _is_event_stream(message: Message) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in message["headers"])
