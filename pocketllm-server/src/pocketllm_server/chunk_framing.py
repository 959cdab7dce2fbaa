"""The short way of a streamed HTTP/1.1 answer's chunks to its socket.

Hypercorn and h11 spend about half of a small chunk's cost on events, state checks and locks that a chunk in the middle
of an answer does not change. The head and the end of an answer go their usual way, so h11's view of the connection
stays right: between the two it only adds the framing that is added here.
"""

from __future__ import annotations

import asyncio

from starlette.types import Message, Scope, Send

_NO_BODY = frozenset({204, 304})


class ChunkFraming:
    """``send`` of one exchange. Other answers (HTTP/2, HTTP/1.0, of known length, without a body) pass through."""

    def __init__(self, scope: Scope, send: Send, writer: asyncio.StreamWriter) -> None:
        self._send = send
        self._writer = writer
        self._transport = writer.transport
        self._may_stream = scope["http_version"] == "1.1" and scope["method"] != "HEAD"
        self._is_streaming = False

    async def send(self, message: Message) -> None:
        if self._is_streaming and message["type"] == "http.response.body":
            data = message.get("body", b"")
            transport = self._transport
            if data and not transport.is_closing():
                transport.write(b"%x\r\n%b\r\n" % (len(data), data))
                if transport.get_write_buffer_size():
                    try:
                        await self._writer.drain()
                    except ConnectionError:
                        pass  # the reading side notices too, and that is what tells the application
            if message.get("more_body", False):
                return
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)
        if message["type"] == "http.response.start":
            has_length = any(name == b"content-length" for name, _ in message["headers"])
            self._is_streaming = self._may_stream and not has_length and message["status"] not in _NO_BODY
