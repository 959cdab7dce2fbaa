"""The outermost layer: errors in OpenAI's shape, bodies that nobody read, one count per response."""

from __future__ import annotations

import asyncio
import logging

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pocketllm.errors import PocketLLMError
from pocketllm_server.connections import ABORT
from pocketllm_server.http_io import ClientGoneError, header, send_json
from pocketllm_server.metrics import Metrics
from pocketllm_server.wire.errors import Headers, HTTPError, describe, error_object

logger = logging.getLogger(__name__)

_LINGER_S = 2.0
_ROUTES = ("/health", "/alive", "/ready", "/metrics", "/v1/models", "/v1/chat/completions", "/v1/completions")
_REQUESTS = "/v1/requests/"
_ROUTER_MESSAGES = {
    404: "There is no such path here: GET /v1/models says what is served.",
    405: "This path does not take this method: the header Allow lists those it takes.",
}


class Edge:
    """ASGI middleware. Nothing raised inside escapes to the server, which would answer a bare 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        status = 499
        try:
            await self._answer(scope, exchange)
            status = exchange.status or 499
        except ClientGoneError:
            # The work is cancelled and there is nobody to answer. A reader that was cut is still connected, though, and
            # what it has not read would wait in memory.
            abort = scope.get(ABORT)
            if abort is not None:
                abort()
        finally:
            self._metrics.http.add(_route(scope["path"]), str(status))

    async def _answer(self, scope: Scope, exchange: _Exchange) -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except ClientGoneError:
            raise
        except Exception as error:  # whatever is wrong in here, the client gets an answer and the log the reason
            status, body, headers = _describe(error)
            if status >= 500:
                unexpected = not isinstance(error, PocketLLMError)
                logger.warning("%s %s: %d, %s", scope["method"], scope["path"], status, error, exc_info=unexpected)
            if not exchange.status:  # else a response has begun, and all that is left is to break it off
                await send_json(exchange.send, status, {"error": body}, headers)


def _describe(error: Exception) -> tuple[int, dict[str, object], Headers]:
    if isinstance(error, PocketLLMError | HTTPError):
        return describe(error)
    if isinstance(error, HTTPException):  # the router's own: no such path, or another method
        headers = tuple((name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items())
        message = _ROUTER_MESSAGES.get(error.status_code, str(error.detail))
        return error.status_code, error_object(error.status_code, message), headers
    message = "The server failed on this request; its log says why."
    return 500, error_object(500, message, code="internal_error"), ()


class _Exchange:
    """Watches one request's messages.

    A server with a bounded inbox blocks when an answer ends while the client still sends, so what is left of the body
    is read and dropped beside the last send, for a short while.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.status = 0
        self._receive = receive
        self._send = send
        length = header(scope, b"content-length")
        chunked = header(scope, b"transfer-encoding") is not None
        self._unread = chunked or (length is not None and length.strip(b"0") != b"")

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._unread:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        elif self._unread and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._drop_body()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _drop_body(self) -> None:
        try:
            async with asyncio.timeout(_LINGER_S):
                while self._unread:
                    await self.receive()
        except TimeoutError:
            # Still sending: go on reading until the connection, which closes after this answer, is gone.
            task = asyncio.ensure_future(self._drop_rest())
            _dropping.add(task)
            task.add_done_callback(_dropping.discard)

    async def _drop_rest(self) -> None:
        while self._unread:
            await self.receive()


_dropping: set[asyncio.Future[None]] = set()
"""Keeps the tasks alive; each ends with its connection."""


def _route(path: str) -> str:
    if path in _ROUTES:
        return path
    return _REQUESTS + "{request_id}" if path.startswith(_REQUESTS) else "other"
