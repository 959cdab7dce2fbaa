"""The short way of a streamed HTTP/1.1 answer's HTTP chunks to its socket.

Hypercorn and h11 spend about half of a small chunk's cost on events, state checks and locks that a chunk in the middle
of an answer does not change. The head and the end of an answer go their usual way, so h11's view of the connection
stays right: between the two it would only put each part between its size and a line break, as is done here.
"""

from __future__ import annotations

import asyncio

from starlette.types import Message, Scope, Send

from pocketllm_server.transport.http_io import WRITE

_CHUNK = b"%x\r\n%b\r\n"
_NO_BODY = frozenset({204, 304})


class ChunkWriter:
    """The direct way. It knows nothing of the exchange: the scope holds it, and what it held would hold the scope."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self.is_streaming = False

    def write(self, data: bytes) -> bool:
        """See ``WRITE``. A reader that is behind has to be waited for; one that is gone takes everything."""
        transport = self._transport
        if not self.is_streaming or transport.get_write_buffer_size():
            return False
        if not transport.is_closing():
            transport.write(_CHUNK % (len(data), data))
        return True

    def put(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(_CHUNK % (len(data), data))


class ChunkedSend:
    """``send`` of one exchange. Other answers (HTTP/2, HTTP/1.0, of known length, without a body) pass through."""

    def __init__(self, scope: Scope, send: Send, writer: asyncio.StreamWriter) -> None:
        self._send = send
        self._writer = writer
        self._chunks = ChunkWriter(writer.transport)
        self._may_stream = scope["http_version"] == "1.1" and scope["method"] != "HEAD"
        scope[WRITE] = self._chunks.write

    async def send(self, message: Message) -> None:
        if self._chunks.is_streaming and message["type"] == "http.response.body":
            data = message.get("body", b"")
            if data:
                self._chunks.put(data)
                if self._writer.transport.get_write_buffer_size():
                    try:
                        await self._writer.drain()
                    except ConnectionError:
                        pass  # the reading side notices too, and that is what tells the application
            if message.get("more_body", False):
                return
            self._chunks.is_streaming = False
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)
        if message["type"] == "http.response.start":
            has_length = any(name == b"content-length" for name, _ in message["headers"])
            self._chunks.is_streaming = self._may_stream and not has_length and message["status"] not in _NO_BODY
