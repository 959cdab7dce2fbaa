"""A client of streamed completions that takes as little of the machine as it can: it shares the cores with the server.

One thread, one epoll, a connection per stream that is kept between requests. What it costs is measured and printed with
the rest; asyncio's streams took four times as much.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Sequence

_EVENT = b"data: "
_CHUNKED_END = b"\r\n0\r\n\r\n"


def completion_body(prompt: Sequence[int], max_tokens: int) -> bytes:
    """Both servers take this: greedy, streamed, and of exactly that many tokens."""
    request = {"model": "m", "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, "stream": True}
    return json.dumps({**request, "ignore_eos": True}).encode()


class _Connection:
    """One stream at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._message = b""
        self._start = 0.0
        self._tail = b""
        self.moments: list[float] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def ask(self, body: bytes) -> None:
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self._message = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        self._start = time.perf_counter()
        self._tail = b""
        self.moments = []
        self._socket.sendall(self._message)

    def read(self) -> bool:
        """Take what has arrived; True at the end of the answer, which has left the moments of its events."""
        data = self._socket.recv(1 << 16)
        now = time.perf_counter() - self._start
        if not data:
            raise SystemExit(f"port {self._port}: the connection ended after {self._tail!r}")
        if not self._tail and not data.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"port {self._port}: {data[:300]!r}")
        # An event's mark may be cut in two; a whole one does not fit into what is kept of the last read.
        self.moments += [now] * (self._tail[1 - len(_EVENT) :] + data).count(_EVENT)
        self._tail = (self._tail + data)[-64:]
        if not self._tail.endswith(_CHUNKED_END):
            return False
        if b"[DONE]" not in self._tail:
            raise SystemExit(f"port {self._port}: the stream ended with {self._tail!r}")
        self.moments.pop()  # [DONE] is no token
        return True

    def close(self) -> None:
        self._socket.close()


def read_streams(port: int, bodies: Sequence[bytes], num_streams: int) -> list[list[float]]:
    """Send all requests, ``num_streams`` of them under way at any time; per answer the moments at which its events
    came, in seconds from its sending on."""
    waiting = list(bodies)
    answers: list[list[float]] = []
    connections = {}
    with select.epoll() as poll:
        for _ in range(min(num_streams, len(waiting))):
            connection = _Connection(port)
            connections[connection.fileno()] = connection
            poll.register(connection.fileno(), select.EPOLLIN)
            connection.ask(waiting.pop())
        while len(answers) < len(bodies):
            for number, _ in poll.poll():
                connection = connections[number]
                if connection.read():
                    answers.append(connection.moments)
                    if waiting:
                        connection.ask(waiting.pop())
    for connection in connections.values():
        connection.close()
    return answers
