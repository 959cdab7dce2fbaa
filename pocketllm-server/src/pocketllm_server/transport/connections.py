"""Hypercorn's protocols on the connections of one listener, with a hold on each connection.

Hypercorn's own ``serve`` keeps its connections to itself and, at the end, waits for clients that have stopped reading.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from starlette.types import ASGIApp, Receive, Scope, Send

from pocketllm_server.transport.http_chunks import ChunkedSend
from pocketllm_server.transport.http_io import ABORT
from pocketllm_server.transport.listener import remove_socket_file

_ABORTED_S = 1.0
# A read allocates its limit and gives back what it did not fill. With asyncio's own 256 KiB the C library's heap filled
# with holes and grew by a third over 16,000 requests; with this, by nothing. A large body takes a few reads more.
_READ_BYTES = 16 * 1024


class Connections:
    """Used on the event loop alone."""

    def __init__(self, app: ASGIApp, config: Config, tls: ssl.SSLContext | None = None) -> None:
        self._app = app
        self._config = config
        self._tls = tls
        self._context = WorkerContext(None)
        self._open: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._listener: socket.socket | None = None

    def __len__(self) -> int:
        return len(self._open)

    async def listen(self, listener: socket.socket) -> None:
        """Accept from now on; the listener is ours."""
        self._listener = listener
        handshake_s = self._config.ssl_handshake_timeout if self._tls is not None else None
        self._server = await asyncio.start_server(
            self._serve, sock=listener, backlog=self._config.backlog, ssl=self._tls, ssl_handshake_timeout=handshake_s
        )

    async def close(self, grace_s: float) -> None:
        """Accept no more, end idle connections, let answers under way end for ``grace_s``, and drop what is left."""
        if self._server is not None and self._listener is not None:
            remove_socket_file(self._listener)
            self._server.close()
        await self._context.terminated.set()
        if self._open:
            await asyncio.wait(self._open, timeout=grace_s)
        for writer in self._open.values():
            writer.transport.abort()
        if self._open:
            await asyncio.wait(self._open, timeout=_ABORTED_S)
        for task in self._open:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        if hasattr(writer.transport, "max_size"):
            writer.transport.max_size = _READ_BYTES

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["http_version"].startswith("1"):
                scope[ABORT] = writer.transport.abort
                send = ChunkedSend(scope, send, writer).send
            await self._app(scope, receive, send)

        loop = asyncio.get_running_loop()
        wrapped = ASGIWrapper(app)  # type: ignore[arg-type]  # it has its own copy of the ASGI types
        server = _Connection(wrapped, loop, self._config, self._context, {}, reader, writer)
        try:
            await server
        finally:
            del self._open[task]
            _untie(server, reader)


class _Connection(TCPServer):
    """Hypercorn's, but over when the client has closed it: its own holds the socket until the keep-alive timeout."""

    _is_read = False

    async def _read_data(self) -> None:
        await super()._read_data()
        self._is_read = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        if self._is_read and isinstance(event, Updated) and event.idle:
            return  # an answer that ends behind the client's back: there is no next request to wait for
        await super().protocol_send(event)


def _untie(server: TCPServer, reader: asyncio.StreamReader) -> None:
    """Undo the reference cycles of a connection that is over.

    Hypercorn's server and its protocol hold each other, and an error that the reader keeps holds every frame it went
    through. Uncut, a request's output stays in memory until the cycle collector's next full run, thousands of requests
    later.
    """
    if hasattr(server, "protocol"):
        del server.protocol
    error = reader.exception()
    if error is not None:
        error.__traceback__ = None
