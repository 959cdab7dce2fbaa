"""The outermost layer: the request's id, bodies that nobody read, one count and one log line per response."""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.layers.auth import OPEN_PATHS
from pocketllm_server.layers.route_labels import RouteLabels
from pocketllm_server.logs import ACCESS_LOGGER, FIELDS
from pocketllm_server.metrics.http import HTTPMetrics
from pocketllm_server.transport.http_io import ABORT, ClientGoneError, header
from pocketllm_server.transport.request_context import REQUEST_ID_HEADER, RequestContext, request_context

logger = logging.getLogger(__name__)
access_logger = logging.getLogger(ACCESS_LOGGER)

_LINGER_S = 2.0
_CLIENT_GONE = 499
_MAX_LOGGED_BYTES = 64 * 1024
# Asked every few seconds for the whole life of a server: their lines would bury the others.
_FREQUENT_ROUTES = OPEN_PATHS | {"/metrics"}


class Edge:
    """ASGI middleware. What is inside raises nothing but :class:`ClientGoneError`."""

    def __init__(self, app: ASGIApp, metrics: HTTPMetrics, labels: RouteLabels, settings: ServerSettings) -> None:
        self._app = app
        self._metrics = metrics
        self._labels = labels
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with request_context(scope) as context:
            await self._exchange(scope, receive, send, context)

    async def _exchange(self, scope: Scope, receive: Receive, send: Send, context: RequestContext) -> None:
        started_at = time.monotonic()
        exchange = _Exchange(scope, receive, send, context, keep_body=self._settings.log_prompts)
        status = _CLIENT_GONE
        try:
            await self._app(scope, exchange.receive, exchange.send)
            status = context.status or _CLIENT_GONE
        except ClientGoneError:
            # The work is cancelled and there is nobody to answer. A reader that was cut is still connected, though, and
            # what it has not read would wait in memory.
            abort = scope.get(ABORT)
            if abort is not None:
                abort()
        finally:
            route = self._labels.of(scope)
            duration_s = time.monotonic() - started_at
            self._metrics.responses.add(route, str(status))
            self._metrics.duration.observe(route, duration_s)
            if exchange.body:
                _log_body(exchange.body)
            if self._settings.access_log:
                _log_access(scope, route, status, duration_s, context)


def _log_access(scope: Scope, route: str, status: int, duration_s: float, context: RequestContext) -> None:
    level = logging.DEBUG if route in _FREQUENT_ROUTES and status < 500 else logging.INFO
    if not access_logger.isEnabledFor(level):
        return
    client = scope.get("client")
    fields: dict[str, object] = {
        "method": scope["method"],
        "route": route,
        "status": status,
        "duration_s": round(duration_s, 6),
        "client": client[0] if client else None,
    }
    words = [scope["method"], route, str(status), f"{duration_s:.3f} s"]
    if context.usage is not None:
        fields["prompt_tokens"] = context.usage.prompt_tokens
        fields["completion_tokens"] = context.usage.completion_tokens
        words.append(f"{context.usage.prompt_tokens} + {context.usage.completion_tokens} tokens")
    if context.ttft_s is not None:
        fields["ttft_s"] = round(context.ttft_s, 6)
    if context.finish_reason is not None:
        fields["finish_reason"] = context.finish_reason
        words.append(context.finish_reason)
    access_logger.log(level, " ".join(words), extra={FIELDS: fields})


def _log_body(body: bytearray) -> None:
    text = body[:_MAX_LOGGED_BYTES].decode(errors="replace")
    access_logger.info("request body: %s", text, extra={FIELDS: {"body": text, "body_bytes": len(body)}})


class _Exchange:
    """Watches one request's messages.

    A server with a bounded inbox blocks when an answer ends while the client still sends, so what is left of the body
    is read and dropped beside the last send, for a short while.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, context: RequestContext, *, keep_body: bool) -> None:
        self.body = bytearray()
        self._context = context
        self._keep_body = keep_body
        self._receive = receive
        self._send = send
        length = header(scope, b"content-length")
        chunked = header(scope, b"transfer-encoding") is not None
        self._unread = chunked or (length is not None and length.strip(b"0") != b"")

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._unread = False
        if self._keep_body and not self._context.status:
            self.body += message.get("body", b"")
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._context.status = message["status"]
            headers = [*message["headers"], (REQUEST_ID_HEADER, self._context.request_id.encode("ascii"))]
            if self._unread:
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
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
            # Still sending: read until the connection, which closes after this answer, is gone.
            task = asyncio.ensure_future(self._drop_rest())
            _dropping.add(task)
            task.add_done_callback(_dropping.discard)

    async def _drop_rest(self) -> None:
        while self._unread:
            await self.receive()


_dropping: set[asyncio.Future[None]] = set()
"""Keeps the tasks alive; each ends with its connection."""
